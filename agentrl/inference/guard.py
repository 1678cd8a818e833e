"""Runs a command and makes sure that neither it nor its children outlive the process that asked for it.

``python -m agentrl.inference.guard COMMAND...`` ends the command and all its descendants when the guard is told to
stop (SIGTERM) or when its standard input closes, which happens when the parent ends, however it ends. It ends as the
command did: with its exit code, or by the same signal. It imports nothing heavy: each guard costs about 10 MB.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys

GRACE_S = 5.0
"""How long a command may take to end after SIGTERM before it is killed."""
_POLL_S = 0.1
_PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> int:
    """Run `command` until it ends, the parent ends, or SIGTERM comes.

    Returns:
        Its exit code; negative: the number of the signal that killed it.
    """
    told = _Told()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_guard)
    while child.poll() is None and not told.to_stop:
        readable, _, _ = select.select([sys.stdin], [], [], _POLL_S)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    _end(child)
    return child.returncode


class _Told:
    """Remembers that a signal asked the guard to stop."""

    def __init__(self) -> None:
        self.to_stop = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        self.to_stop = True


def _die_with_guard() -> None:
    """Runs in the command's process: the kernel kills it if the guard is killed (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask the command to end, then kill what remains of its group and of its descendants."""
    # Listed first: once the command has ended, its children belong to init and cannot be found any more.
    descendants = _descendants(child)
    if child.poll() is None and not _is_stopped(child.pid):
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    for pid in descendants:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    child.wait()


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP, a debugger): it would not hear SIGTERM."""
    import psutil

    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.NoSuchProcess:
        return False


def _descendants(child: subprocess.Popen[bytes]) -> list[int]:
    """The command's descendants, including those that left its group."""
    import psutil

    try:
        return [process.pid for process in psutil.Process(child.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _end_like(code: int) -> int:
    """End by the signal that killed the command: as an exit code, -9 becomes 247, which nobody reads as SIGKILL."""
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has left its own core file, if any
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(_end_like(main(sys.argv[1:])))
