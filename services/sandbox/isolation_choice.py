"""The strongest level of isolation that works here: each is tried with a little Python."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path

from agentrl.errors import UserInputError, suggest
from agentrl.services.sandbox.filesystem_layout import FilesystemLayout, closed_folder
from agentrl.services.sandbox.guest.linux_calls import LANDLOCK_SCOPES, landlock_version
from agentrl.services.sandbox.isolation import LEVELS, Isolation
from agentrl.services.sandbox.launcher_process import (
    LauncherProcess,
    encode_job,
    make_run_folder,
    start_launcher,
    wait_readable,
)
from agentrl.services.sandbox.seccomp import INSTALL, SeccompFilters, libseccomp
from agentrl.services.sandbox.user_range import find_users
from agentrl.services.sandbox.zygote_pool import Zygote

_PROBE_S = 10
_WEAK = "; --allow-weak-isolation starts the service all the same (docs/services.md, Containers)"


def choose_isolation(
    server_folder: Path,
    layout: FilesystemLayout,
    wanted: str | None,
    required: str | None,
    fresh: bool = False,
    allow_weak: bool = False,
) -> Isolation:
    """The requested level, or the strongest that works here.

    Args:
        server_folder: the server's own folder.
        layout: the part of this machine that the code sees.
        wanted: a level, or None.
        required: the weakest acceptable level, or None.
        fresh: start an interpreter for each run, instead of forking one that is up.
        allow_weak: take a level also where code in it could end the server, or has no seccomp filter.

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
        found, problem = _build(level, server_folder, layout, fresh, allow_weak)
        if found is not None:
            return found
        tried.append(f"{level}: {problem}")
    asked = f"isolation {required or wanted!r} does not work" if required or wanted else "no isolation works"
    reasons = "\n  ".join(tried) or f"--isolation {wanted} is weaker than --require-isolation {required}"
    raise UserInputError(f"{asked} here:\n  {reasons}")


def _build(
    level: str, server_folder: Path, layout: FilesystemLayout, fresh: bool, allow_weak: bool
) -> tuple[Isolation | None, str]:
    if level == "bubblewrap" and shutil.which("bwrap") is None:
        return None, "bwrap not found (Debian: apt-get install bubblewrap)"
    users, no_users = find_users()
    found, problem = _build_as(users is not None, no_users, level, server_folder, layout, fresh, allow_weak)
    if found is None and users is not None and level != "rlimits":  # a container may permit user namespaces only
        found, _ = _build_as(False, no_users, level, server_folder, layout, fresh, allow_weak)
    return found, problem


def _build_as(
    own_users: bool,
    no_users: str,
    level: str,
    server_folder: Path,
    layout: FilesystemLayout,
    fresh: bool,
    allow_weak: bool,
) -> tuple[Isolation | None, str]:
    landlock = landlock_version() if level == "rlimits" else 0
    scoped = level != "rlimits" or own_users or landlock >= LANDLOCK_SCOPES
    closed = closed_folder(layout, whole_path=level == "rlimits") if own_users else None
    if closed is not None:
        return None, (
            f"every run has a user of its own, and {closed} on the way to {layout.python} is closed to other users: "
            "open it, or give --python an interpreter that all users can read"
        )
    weakness = _weakness(scoped, no_users)
    if weakness and not allow_weak:
        return None, f"{weakness}{_WEAK}"
    filters = None
    if libseccomp() is not None:
        filters = SeccompFilters(level != "rlimits", alone=level != "rlimits" or own_users, scoped=scoped)
    details = _details(level, own_users, landlock, filters is not None)
    forks = level != "rlimits" and not fresh
    isolation = Isolation(level, layout, own_users, filters, landlock, details, forks=forks)
    problem = _probe(isolation, server_folder)
    return (isolation, "") if problem is None else (None, problem)


def _weakness(scoped: bool, no_users: str) -> str:
    """What makes this isolation a weak one; empty: nothing."""
    if not scoped:
        return (
            "code would run as the server's own user and could end the server, for runs cannot be other users "
            f"({no_users}) and the kernel cannot hold back their signals (Landlock of Linux 6.12 or later)"
        )
    return "" if libseccomp() is not None else INSTALL


def _details(level: str, own_users: bool, landlock: int, seccomp: bool) -> tuple[str, ...]:
    names = ("pid", "net", "ipc", "mount", "uts")
    spaces = () if level == "rlimits" else tuple(f"{name} namespace" for name in names)
    user = "a user of its own per run" if own_users else "user namespace" if level != "rlimits" else "the server's user"
    filters = (*(("seccomp",) if seccomp else ()), *((f"Landlock {landlock}",) if landlock else ()))
    system = () if level == "rlimits" else ("read-only system", "private /tmp")
    return (*spaces, user, *system, *filters, "rlimits", "empty environment")


def _probe(isolation: Isolation, server_folder: Path) -> str | None:
    """Run a little Python in a sandbox; returns None if it works, else the problem."""
    users, _ = find_users()
    folder = server_folder / f"probe-{isolation.level}"
    uid = users[0] if users and isolation.own_users else None
    make_run_folder(folder, uid, isolation.has_own_root)
    (folder / "work" / "main.py").write_text("import subprocess\n", encoding="utf-8")
    try:
        if not isolation.has_own_root:
            return _try(isolation, folder, uid, start_launcher(isolation, folder, uid))
        with Zygote(isolation, server_folder) as zygote:
            return _try(isolation, folder, uid, zygote.start(folder))
    except OSError as error:
        return str(error)
    finally:
        shutil.rmtree(folder)


def _try(isolation: Isolation, folder: Path, uid: int | None, launcher: LauncherProcess) -> str | None:
    job = {"kind": "main", "path": isolation.layout.python_path, "limits": {}}
    with launcher.control as control, open(launcher.stderr, "rb") as stderr:
        control.settimeout(_PROBE_S)
        with contextlib.suppress(OSError):
            if control.recv(1) == b"R":
                control.sendall(encode_job(job, isolation, folder, uid))
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
