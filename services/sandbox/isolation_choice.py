"""The strongest level of isolation that works here: each is tried with a little Python."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.errors import UserInputError, suggest
from agentrl.services.sandbox.filesystem_layout import FilesystemLayout, closed_folder
from agentrl.services.sandbox.isolation import LEVELS, Isolation
from agentrl.services.sandbox.launcher_process import (
    LauncherProcess,
    encode_message,
    make_run_folder,
    start_launcher,
    wait_readable,
)
from agentrl.services.sandbox.mounts import ADMIN_PATH
from agentrl.services.sandbox.seccomp import seccomp_program
from agentrl.services.sandbox.zygote_pool import Zygote

_PROBE_S = 10
_FIRST_UID = 1_000_000
UIDS_PER_SERVER = 1000


def choose_isolation(
    server_folder: Path, layout: FilesystemLayout, wanted: str | None, required: str | None, fresh: bool = False
) -> Isolation:
    """The requested level, or the strongest that works here.

    Args:
        server_folder: the server's own folder.
        layout: the part of this machine that the code sees.
        wanted: a level, or None.
        required: the weakest acceptable level, or None.
        fresh: start an interpreter for each run, even if runs could be forks of a running one.

    Raises:
        UserInputError: the level is unknown, or no level that is strong enough works; the message says why for each.
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
        found, problem = _build(level, server_folder, layout, fresh)
        if found is not None:
            return found
        tried.append(f"{level}: {problem}")
    asked = required or wanted
    reasons = "\n  ".join(tried) or f"--isolation {wanted} is weaker than --require-isolation {required}"
    raise UserInputError(f"isolation {asked!r} does not work here:\n  {reasons}")


def first_uid() -> int:
    """Start of the user numbers of this server; two servers on a machine have different ones."""
    return _FIRST_UID + os.getpid() % 10_000 * UIDS_PER_SERVER


def _build(level: str, server_folder: Path, layout: FilesystemLayout, fresh: bool) -> tuple[Isolation | None, str]:
    missing = [
        name for name in _needs(level) if shutil.which(name) is None and shutil.which(name, path=ADMIN_PATH) is None
    ]
    if missing:
        return None, f"{' and '.join(missing)} not found (Debian: apt-get install bubblewrap util-linux)"
    own_users = os.geteuid() == 0
    closed = closed_folder(layout, whole_path=level == "rlimits") if own_users else None
    if closed is not None:
        return None, (
            f"every run has a user of its own, and {closed} on the way to {layout.python} is closed to other users: "
            "open it, or give --python an interpreter that all users can read"
        )
    program = seccomp_program(network_is_apart=level != "rlimits")
    file = None
    if program is not None:
        file = server_folder / f"seccomp-{level}.bpf"
        file.write_bytes(program)
        file.chmod(0o444)
    isolation = Isolation(level, layout, own_users, file, _details(level, own_users, program is not None))
    forking = replace(isolation, forks=True)
    if isolation.has_own_root and not fresh and _probe(forking, server_folder) is None:
        return forking, ""
    problem = _probe(isolation, server_folder)
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


def _probe(isolation: Isolation, server_folder: Path) -> str | None:
    """Run a little Python in a sandbox; returns None if it works, else the problem."""
    folder, uid = (
        server_folder / f"probe-{isolation.level}-{isolation.forks}",
        first_uid() if isolation.own_users else None,
    )
    make_run_folder(folder, uid, isolation.forks)
    (folder / "work" / "main.py").write_text("import subprocess\n", encoding="utf-8")
    try:
        if not isolation.forks:
            return _try(isolation, folder, uid, start_launcher(isolation, folder, uid))
        with Zygote(isolation, server_folder) as zygote:
            return _try(isolation, folder, uid, zygote.start(folder))
    except OSError as error:
        return str(error)
    finally:
        shutil.rmtree(folder)


def _try(isolation: Isolation, folder: Path, uid: int | None, launcher: LauncherProcess) -> str | None:
    path = isolation.layout.python_path
    job: dict[str, Any] = {"kind": "main", "path": path, "limits": {}, "uid": uid}
    with launcher.control as control, open(launcher.stderr, "rb") as stderr:
        control.settimeout(_PROBE_S)
        with contextlib.suppress(OSError):
            if control.recv(1) == b"R":
                control.sendall(encode_message({**job, "folder": isolation.folder_inside(folder)}))
        if not wait_readable(stderr.fileno(), _PROBE_S):
            os.kill(launcher.pid, signal.SIGKILL)
        errors = stderr.read()
    code = launcher.reap().code
    os.close(launcher.stdin)
    os.close(launcher.stdout)
    if code == 0:
        return None
    text = [line for line in errors.decode(errors="replace").strip().splitlines() if "dmesg(1)" not in line]
    reason = text[-1] if text else f"a trial ended with code {code}"
    return f"{isolation.layout.python} does not run in it: {reason}"
