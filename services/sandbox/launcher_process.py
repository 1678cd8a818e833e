"""Starts a launcher around a run's folder, as a program of its own."""

from __future__ import annotations

import functools
import os
import select
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.services.sandbox.isolation import Isolation
from agentrl.services.sandbox.seccomp import PYTHON


class Ended(NamedTuple):
    """How a child of this process ended."""

    code: int
    """Its exit code; negative: the signal that ended it."""
    cpu_s: float
    """Processor time of it and of those below it for which somebody waited."""


@dataclass(frozen=True, slots=True)
class LauncherProcess:
    """A launcher in its sandbox, seen from this side.

    Attributes:
        pid: the child of this process to which all others of the sandbox belong.
        is_first: it is the first process of the sandbox's own namespace: when it dies, the kernel ends the others.
        reap: says how it ended; waits until then.
        control: the socket to the launcher.
        stdin: the code's input, to write; like the next two a descriptor to close.
        stdout: the code's output, to read.
        stderr: the code's errors, to read.
    """

    pid: int
    is_first: bool
    reap: Callable[[], Ended]
    control: socket.socket
    stdin: int
    stdout: int
    stderr: int


class LauncherPipes:
    """Both ends of what a launcher is given: `theirs` are its control socket, stdin, stdout and stderr."""

    def __init__(self) -> None:
        self.control, control = socket.socketpair()
        self._open = [control.detach()]
        try:
            stdin, self.stdin = self._pipe()
            self.stdout, stdout = self._pipe()
            self.stderr, stderr = self._pipe()
        except OSError:
            self.close_all()
            raise
        self.theirs = [self._open[0], stdin, stdout, stderr]

    def hand_over(self, pid: int, is_first: bool, reap: Callable[[], Ended]) -> LauncherProcess:
        """Close their ends and hand over ours."""
        for fd in self.theirs:
            os.close(fd)
        return LauncherProcess(pid, is_first, reap, self.control, self.stdin, self.stdout, self.stderr)

    def close_all(self) -> None:
        """Nothing was started."""
        self.control.close()
        for fd in self._open:
            os.close(fd)

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._open += ends
        return ends


@contextmanager
def launcher_pipes() -> Iterator[LauncherPipes]:
    """The descriptors of a launcher; closed if the block fails.

    Raises:
        OSError: no file descriptors are left.
    """
    made = LauncherPipes()
    try:
        yield made
    except BaseException:
        made.close_all()
        raise


def start_launcher(isolation: Isolation, folder: Path, uid: int | None) -> LauncherProcess:
    """Start a launcher around a run's folder, where it has no file system of its own.

    Raises:
        OSError: no process or file descriptor can be created.
    """
    with launcher_pipes() as ends:
        control, *streams = ends.theirs
        process = subprocess.Popen(
            isolation.supervised_command(uid, control),
            env=isolation.environment(folder),
            cwd="/",
            pass_fds=[control],
            start_new_session=True,
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
        )
        return ends.hand_over(process.pid, False, functools.partial(_reap_process, process))


def reap(pid: int) -> Ended:
    """Wait for a child."""
    _, status, usage = os.wait4(pid, 0)
    return Ended(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime)


def _reap_process(process: subprocess.Popen[bytes]) -> Ended:
    ended = reap(process.pid)
    process.returncode = ended.code  # it would otherwise wait for the child itself
    return ended


def wait_readable(fd: int, seconds: float) -> bool:
    """Wait until there is something to read; unlike `select`, for descriptors of any number."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def encode_message(message: dict[str, Any]) -> bytes:
    """A message in the form that the program inside reads."""
    data = repr(message).encode()
    return b"%08d" % len(data) + data


def encode_job(job: dict[str, Any], isolation: Isolation, folder: Path, uid: int | None) -> bytes:
    """A job in the form that the launcher reads: what it is to run, in what it is kept, and the seccomp program.

    Args:
        job: see `guest/launcher.py`; `language` chooses the program.
        isolation: how the sandbox is kept apart.
        folder: the run's folder, as the server sees it.
        uid: the user that the code becomes; None: the server's own.
    """
    program = b"" if isolation.filters is None else isolation.filters.of(job.get("language", PYTHON))
    inside = isolation.folder_inside(folder)
    own = {"uid": uid, "folder": inside, "filter_bytes": len(program), **isolation.landlock_rules(folder)}
    return encode_message({**own, **job}) + program


def make_run_folder(folder: Path, uid: int | None, has_own_root: bool) -> None:
    """Make the folders of a run: `work` and, unless it has a file system of its own, `tmp`."""
    os.mkdir(folder, 0o711)
    os.chmod(folder, 0o711)  # whatever the umask is
    for name in ("work",) if has_own_root else ("work", "tmp"):
        path = os.path.join(folder, name)
        os.mkdir(path, 0o700)
        if uid is not None:
            os.chown(path, uid, uid)
