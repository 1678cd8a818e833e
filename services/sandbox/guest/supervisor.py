"""Where the kernel gives no namespaces: runs a program and ends every process that came from it.

Usage: `python -S supervisor.py UID PROGRAM ARG...`. UID is the user that the program will become, or `-` to stay the
server's own user. On SIGTERM, and when the program ends, all its descendants die, those that left its process group
or its session included. What a user of its own left in shared folders is removed too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

SHARED = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders that all users write to."""
_PATIENCE_S = 5.0
_BATCH = 1000
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as stream:
            return [int(child) for child in stream.read().split()]
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """Children, their children and so on."""
    found, todo = [], [pid]
    while todo:
        new = children(todo.pop())
        found += new
        todo += new
    return found


def end_all(uid: int | None) -> None:
    """Kill descendants until none is left. A user of their own makes it one call that no fork escapes."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        if uid is not None and os.fork() == 0:
            os.setgroups([])
            os.setresuid(uid, uid, uid)
            try:
                os.kill(-1, signal.SIGKILL)
            finally:
                os._exit(0)
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def remove_left(uid: int) -> None:
    """Remove what the user owns in `SHARED`; of its folders, what it owns in them."""
    paths = [f"{place}/{name}" for place in SHARED if os.path.isdir(place) for name in os.listdir(place)]
    own = [path for path in paths if _owner(path) == uid]
    for at in range(0, len(own), _BATCH):
        # It goes as deep as any tree and follows no link.
        arguments = ["find", *own[at : at + _BATCH], "-xdev", "-uid", str(uid), "-delete"]
        silent = (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0)
        try:
            os.waitpid(os.posix_spawnp("find", arguments, os.environ, file_actions=[silent]), 0)
        except FileNotFoundError:
            return


def _owner(path: str) -> int | None:
    try:
        return os.lstat(path).st_uid
    except OSError:  # another run's, which ends too
        return None


def finish(uid: int | None) -> None:
    """Leave nothing behind."""
    end_all(uid)
    if uid is not None:
        remove_left(uid)


def main() -> int:
    """Run the program and clean up after it."""
    uid = None if sys.argv[1] == "-" else int(sys.argv[1])
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    def stop(*_: object) -> None:
        finish(uid)
        os._exit(128 + signal.SIGKILL)

    signal.signal(signal.SIGTERM, stop)
    program = os.fork()
    if program == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        os.execv(sys.argv[2], sys.argv[2:])
    while True:
        pid, status = os.wait()
        if pid == program:
            break
    finish(uid)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
