"""Where the kernel gives no namespaces: runs a program and ends every process that came from it.

Usage: `python -S supervise.py UID PROGRAM ARG...`. UID is whom the program will become, or `-` when it stays the
server's own user. On SIGTERM, and when the program ends, all its descendants die, those that left its process group
or its session included.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

_PATIENCE_S = 5.0
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


def main() -> int:
    """Run the program and clean up after it."""
    uid = None if sys.argv[1] == "-" else int(sys.argv[1])
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    def stop(*_: object) -> None:
        end_all(uid)
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
    end_all(uid)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
