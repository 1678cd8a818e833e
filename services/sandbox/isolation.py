"""How code is kept apart from the machine: three levels, strongest first, and which of them work here."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.errors import UserInputError, suggest
from agentrl.services.sandbox.layout import Layout, closed_folder
from agentrl.services.sandbox.limits import MIB
from agentrl.services.sandbox.mounts import ADMIN_PATH, SHM_MB, bubblewrap_mounts, mount_script
from agentrl.services.sandbox.seccomp import seccomp_program
from agentrl.services.sandbox.starting import Started, make_run_folder, message, readable, start
from agentrl.services.sandbox.zygotes import Zygote

LEVELS = ("bubblewrap", "namespaces", "rlimits")
"""Strongest first."""
_PROBE_S = 10
_FIRST_UID = 1_000_000
UIDS_PER_SERVER = 1000


@dataclass(frozen=True, slots=True)
class Isolation:
    """One level, ready to start programs.

    Attributes:
        level: one of `LEVELS`.
        own_users: every run is a user of its own, whose number nobody else on the machine has.
        seccomp_file: the filter that is loaded; None: none on this architecture.
        details: what holds the code back, for `/health`.
    """

    level: str
    layout: Layout
    own_users: bool
    seccomp_file: Path | None
    details: tuple[str, ...]
    forks: bool = False
    """Jails are forked from interpreters that are up (see `zygotes`), else each is started anew."""

    @property
    def has_own_root(self) -> bool:
        """The code sees a file system of its own."""
        return self.level != "rlimits"

    def folder_inside(self, folder: Path) -> str:
        """Where the code finds the run's folder."""
        return self.layout.inside if self.has_own_root else str(folder / "work")

    def environment(self, folder: Path) -> dict[str, str]:
        """All variables that the code gets; none is the server's."""
        home = self.folder_inside(folder)
        return {
            "PATH": self.layout.path,
            "HOME": home,
            "PWD": home,
            "TMPDIR": "/tmp" if self.has_own_root else str(folder / "tmp"),
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "USER": "sandbox",
            # One thread per numeric library: the pools of many cores do not fit the limits of a run.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            # Each of malloc's pools reserves 64 MB of addresses, and they count.
            "MALLOC_ARENA_MAX": "2",
        }

    def command(self, folder: Path, uid: int | None, control: int, seccomp_fd: int | None = None) -> list[str]:
        """Arguments that start the launcher in a sandbox around `folder`."""
        launcher = [self.layout.python, "-S", "-B", str(self.layout.guest / "launch.py"), str(control)]
        if self.level == "bubblewrap":
            return [*self._bubblewrap(folder, seccomp_fd), "--", *launcher]
        passed = [control]
        if seccomp_fd is not None:
            launcher.append(str(seccomp_fd))
            passed.append(seccomp_fd)
        if self.level == "namespaces":
            return [*self._unshare(folder, passed), *launcher]
        supervise = [
            sys.executable,
            "-S",
            "-B",
            str(self.layout.guest / "supervise.py"),
            "-" if uid is None else str(uid),
        ]
        return [*supervise, *launcher]

    def zygote_command(self, home: Path, socket: int) -> list[str]:
        """Arguments that start a zygote, which makes the jails of all folders below `home`."""
        zygote = [self.layout.python, "-S", "-B", str(self.layout.guest / "zygote.py"), str(socket)]
        if self.level == "namespaces":
            user = [] if self.own_users else ["--user", "--map-root-user"]
            script = mount_script(self.layout, home, home, [socket], apart=False)
            return ["unshare", *user, "--mount", "--uts", "/bin/sh", "-c", script, "sandbox", *zygote]
        user = [] if self.own_users else ["--unshare-user", "--uid", "0", "--gid", "0"]
        return [
            *(self.layout.bubblewrap, *user, "--unshare-uts", "--hostname", "sandbox", "--die-with-parent"),
            *("--cap-add", "ALL", *bubblewrap_mounts(self.layout, home, own_proc=False), "--", *zygote),
        ]

    def zygote_setup(self) -> dict[str, Any]:
        """What a zygote is told (see `guest/jails.py`)."""
        return {
            "inside": self.layout.inside,
            "shown": self.layout.shown,
            "own_users": self.own_users,
            "shm_bytes": SHM_MB * MIB,
            "tmp_bytes": self.layout.tmp_mb * MIB,
            "seccomp": None if self.seccomp_file is None else self.seccomp_file.read_bytes(),
        }

    def _bubblewrap(self, folder: Path, seccomp_fd: int | None) -> list[str]:
        users = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        if not self.own_users:
            users = ["--unshare-user", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"]
        return [
            *(self.layout.bubblewrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
            *("--unshare-cgroup-try", "--hostname", "sandbox", "--die-with-parent", "--new-session", *users),
            *bubblewrap_mounts(self.layout, folder / "work"),
            *(() if seccomp_fd is None else ("--seccomp", str(seccomp_fd))),
        ]

    def _unshare(self, folder: Path, passed: Collection[int]) -> list[str]:
        shell = ["/bin/sh", "-c", mount_script(self.layout, folder, folder / "work", passed), "sandbox"]
        names = ["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
        if self.own_users:
            return ["unshare", *names, *shell]
        drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        return ["unshare", "--user", "--map-root-user", *names, *shell, *drop]


def choose_isolation(
    home: Path, layout: Layout, wanted: str | None, required: str | None, fresh: bool = False
) -> Isolation:
    """The level asked for, or the strongest that works here.

    Args:
        home: the server's own folder.
        layout: what of this machine the code sees.
        wanted: a level, or None.
        required: the weakest level that is good enough, or None.
        fresh: start an interpreter for each run, where forks of one that is up could do.

    Raises:
        UserInputError: no such level, or none works that is strong enough; says why each does not.
    """
    for name, level in (("isolation", wanted), ("require-isolation", required)):
        if level is not None and level not in LEVELS:
            raise UserInputError(f"--{name}: got {level!r}, wanted a level.{suggest(level, LEVELS)}")
    tried = []
    for level in LEVELS:
        if wanted is not None and level != wanted:
            continue
        if required is not None and LEVELS.index(level) > LEVELS.index(required):
            break
        found, problem = _build(level, home, layout, fresh)
        if found is not None:
            return found
        tried.append(f"{level}: {problem}")
    asked = required or wanted
    reasons = "\n  ".join(tried) or f"--isolation {wanted} is weaker than --require-isolation {required}"
    raise UserInputError(f"isolation {asked!r} is not to be had here:\n  {reasons}")


def first_uid() -> int:
    """Start of the user numbers of this server; two servers on a machine have different ones."""
    return _FIRST_UID + os.getpid() % 10_000 * UIDS_PER_SERVER


def _build(level: str, home: Path, layout: Layout, fresh: bool) -> tuple[Isolation | None, str]:
    missing = [
        name for name in _needs(level) if shutil.which(name) is None and shutil.which(name, path=ADMIN_PATH) is None
    ]
    if missing:
        return None, f"{' and '.join(missing)} not found (Debian: apt-get install bubblewrap util-linux)"
    own_users = os.geteuid() == 0
    closed = closed_folder(layout, whole_path=level == "rlimits") if own_users else None
    if closed is not None:
        return None, (
            f"every run is a user of its own, and {closed} on the way to {layout.python} is closed to other users: "
            "open it, or name with --python an interpreter that all users can read"
        )
    program = seccomp_program(network_is_apart=level != "rlimits")
    file = None
    if program is not None:
        file = home / f"seccomp-{level}.bpf"
        file.write_bytes(program)
        file.chmod(0o444)
    isolation = Isolation(level, layout, own_users, file, _details(level, own_users, program is not None))
    forking = replace(isolation, forks=True)
    if isolation.has_own_root and not fresh and _probe(forking, home) is None:
        return forking, ""
    problem = _probe(isolation, home)
    return (isolation, "") if problem is None else (None, problem)


def _needs(level: str) -> Sequence[str]:
    return {"bubblewrap": ["bwrap"], "namespaces": ["unshare", "mount", "pivot_root"], "rlimits": []}[level]


def _details(level: str, own_users: bool, seccomp: bool) -> tuple[str, ...]:
    names = ("pid", "net", "ipc", "mount", "uts")
    spaces = () if level == "rlimits" else tuple(f"{name} namespace" for name in names)
    user = "a user of its own per run" if own_users else "user namespace" if level != "rlimits" else "the server's user"
    filters = ("seccomp",) if seccomp else ()
    system = () if level == "rlimits" else ("read-only system", "private /tmp")
    return (*spaces, user, *system, *filters, "rlimits", "empty environment")


def _probe(isolation: Isolation, home: Path) -> str | None:
    """Run a little Python in a sandbox; None when that goes well, else what goes wrong."""
    folder, uid = home / f"probe-{isolation.level}-{isolation.forks}", first_uid() if isolation.own_users else None
    make_run_folder(folder, uid, isolation.forks)
    (folder / "work" / "main.py").write_text("import subprocess\n", encoding="utf-8")
    try:
        if not isolation.forks:
            return _try(isolation, folder, uid, start(isolation, folder, uid))
        with Zygote(isolation, home) as zygote:
            return _try(isolation, folder, uid, zygote.start(folder))
    except OSError as error:
        return str(error)
    finally:
        shutil.rmtree(folder)


def _try(isolation: Isolation, folder: Path, uid: int | None, started: Started) -> str | None:
    path = isolation.layout.python_path
    job: dict[str, Any] = {"kind": "main", "path": path, "limits": {}, "uid": uid}
    with started.control as control, open(started.stderr, "rb") as stderr:
        control.settimeout(_PROBE_S)
        with contextlib.suppress(OSError):
            if control.recv(1) == b"R":
                control.sendall(message({**job, "folder": isolation.folder_inside(folder)}))
        if not readable(stderr.fileno(), _PROBE_S):
            os.kill(started.pid, signal.SIGKILL)
        errors = stderr.read()
    code = started.reap()
    os.close(started.stdin)
    os.close(started.stdout)
    if code == 0:
        return None
    text = [line for line in errors.decode(errors="replace").strip().splitlines() if "dmesg(1)" not in line]
    reason = text[-1] if text else f"a trial ended with code {code}"
    return f"{isolation.layout.python} does not run in it: {reason}"
