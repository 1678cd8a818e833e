"""Running interpreters that fork sandboxes: a run costs a fork and a few mounts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import itertools
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from agentrl.services.sandbox.isolation import Isolation
from agentrl.services.sandbox.launcher_process import Ended, LauncherProcess, launcher_pipes, reap, wait_readable
from agentrl.services.sandbox.process_tree import adopting_orphans, children, is_dead, is_namespace_init

_START_S = 20.0
_ANSWER_S = 20.0
_ANSWER_BYTES = 1000
_SHOWN_BYTES = 500
_COUNT = 2
"""Consecutive runs use different zygotes, so they differ in what an interpreter draws at its start (the hash seed)."""
_FORKS = 100
_LOST_S = 1.0


class Zygote:
    """One zygote. Its sandboxes do not end with it.

    Args:
        isolation: how sandboxes are isolated.
        runs_folder: the folder that holds the runs' folders.

    Raises:
        OSError: it does not start.
    """

    def __init__(self, isolation: Isolation, runs_folder: Path) -> None:
        self.forks = 0
        self._root = runs_folder / "root"
        self._root.mkdir(mode=0o700, exist_ok=True)
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # The zygote leaves bubblewrap's processes at its start and becomes an orphan, which this process adopts
            # (see `sandbox_fork._become_orphan`). Its sandboxes are then children of this process, which waits for
            # them.
            with theirs, adopting_orphans():
                self._pid = self._launch(isolation, runs_folder, theirs)
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self.socket.close()
        _end(self._pid)

    def start(self, folder: Path) -> LauncherProcess:
        """Make a sandbox around a run's folder and wait for it.

        Raises:
            OSError: the zygote cannot make one, or has ended.
        """
        with launcher_pipes() as ends:
            self.ask(folder, ends.theirs)
            if not wait_readable(self.socket.fileno(), _ANSWER_S):
                raise OSError(f"the zygote gave no answer within {_ANSWER_S:g} s")
            pid = self.answer()
            return ends.hand_over(pid, True, functools.partial(reap, pid))

    async def start_soon(self, folder: Path) -> LauncherProcess:
        """The same without blocking the event loop. One at a time."""
        with launcher_pipes() as ends:
            self.ask(folder, ends.theirs)
            loop, came = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(self.socket, came.set)
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await came.wait()
            finally:
                loop.remove_reader(self.socket)
            pid = self.answer()
            return ends.hand_over(pid, True, functools.partial(reap, pid))

    def ask(self, folder: Path, theirs: list[int]) -> None:
        """Ask for a sandbox."""
        self.forks += 1
        socket.send_fds(self.socket, [folder.name.encode()], theirs)

    def answer(self) -> int:
        """Read the process id of the sandbox's first process."""
        answer = self.socket.recv(_ANSWER_BYTES)
        if not answer.isdigit():
            raise OSError(answer[1:].decode(errors="replace") or "the zygote has ended")
        return int(answer)

    def _launch(self, isolation: Isolation, runs_folder: Path, theirs: socket.socket) -> int:
        process = subprocess.Popen(
            isolation.zygote_command(theirs.fileno()),
            env=isolation.environment(runs_folder),
            cwd="/",
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        theirs.close()
        with process:
            with contextlib.suppress(BrokenPipeError):
                self.socket.send(repr(isolation.zygote_setup(runs_folder, self._root)).encode())
            pid = self._hear()
            if self._hear() == b"R":
                return int(pid)
            process.kill()
            assert process.stderr is not None
            said = process.stderr.read()[-_SHOWN_BYTES:].decode(errors="replace").strip()
        # bubblewrap's own processes are of its session. Whatever of it this process has adopted would stay a zombie.
        while left := [child for child in children(os.getpid()) if _session(child) == process.pid]:
            for child in left:
                _end(child)
        if pid:
            _end(int(pid))
        raise OSError(f"the zygote did not start: {said or 'no reason given'}")

    def _hear(self) -> bytes:
        if not wait_readable(self.socket.fileno(), _START_S):
            return b""
        try:
            return self.socket.recv(_ANSWER_BYTES)
        except ConnectionError:
            return b""


class ZygotePool:
    """Zygotes that take turns and are replaced, after a number of forks and when one dies.

    Args:
        isolation: how sandboxes are isolated.
        runs_folder: the folder that holds the runs' folders.
        forks: a zygote is replaced after this many forks.
    """

    def __init__(self, isolation: Isolation, runs_folder: Path, forks: int = _FORKS) -> None:
        make = functools.partial(Zygote, isolation, runs_folder)
        self._slots = [_ZygoteSlot(make, forks, self._reap_lost_soon) for _ in range(_COUNT)]
        self._turns = itertools.cycle(self._slots)
        self._children: set[int] = set()

    async def start(self, folder: Path) -> LauncherProcess:
        """Make a sandbox around a run's folder.

        Raises:
            OSError: no zygote can make one.
        """
        launcher = await next(self._turns).start(folder)
        self._children.add(launcher.pid)
        return replace(launcher, reap=functools.partial(self._reap, launcher))

    async def close(self) -> None:
        """End them all."""
        await asyncio.gather(*(slot.close() for slot in self._slots))

    def _reap(self, launcher: LauncherProcess) -> Ended:
        self._children.discard(launcher.pid)
        return launcher.reap()

    def _reap_lost_soon(self) -> None:
        asyncio.get_running_loop().call_later(_LOST_S, self._reap_lost)

    def _reap_lost(self) -> None:
        """Wait for a sandbox that a killed zygote had just made: nobody knows it, and it ends by itself, in time."""
        unknown = [pid for pid in children(os.getpid()) if pid not in self._children and is_namespace_init(pid)]
        dead = list(filter(is_dead, unknown))
        for pid in dead:
            os.waitpid(pid, os.WNOHANG)
        if len(dead) < len(unknown):  # it still ends, or another zygote is just handing it over
            self._reap_lost_soon()


class _ZygoteSlot:
    """Room for one zygote."""

    def __init__(self, make: Callable[[], Zygote], forks: int, on_loss: Callable[[], None]) -> None:
        self._make, self._forks, self._on_loss = make, forks, on_loss
        self._zygote: Zygote | None = None
        self._next: asyncio.Task[Zygote] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def start(self, folder: Path) -> LauncherProcess:
        async with self._one_at_a_time:
            try:
                return await self._start(folder)
            except OSError as error:  # the zygote was killed; no code has run, so a new one can do it
                if error.errno in (errno.EMFILE, errno.ENFILE):  # it was not: no file descriptors are left
                    raise
                self._on_loss()
                await self._drop()
                return await self._start(folder)

    async def close(self) -> None:
        async with self._one_at_a_time:
            await self._drop()
            if self._next is not None:
                with contextlib.suppress(OSError):
                    await asyncio.to_thread((await self._next).close)

    async def _start(self, folder: Path) -> LauncherProcess:
        if self._zygote is not None and self._zygote.forks >= self._forks:
            await self._exchange()
        if self._zygote is None:
            self._zygote = await asyncio.to_thread(self._make)
        return await self._zygote.start_soon(folder)

    async def _exchange(self) -> None:
        # Used up: start the next zygote in the background, and use the old one until it is ready.
        if self._next is None:
            self._next = asyncio.create_task(asyncio.to_thread(self._make))
        if not self._next.done():
            return
        made, self._next = self._next, None
        if made.exception() is None:
            await self._drop()
            self._zygote = made.result()

    async def _drop(self) -> None:
        if self._zygote is not None:
            zygote, self._zygote = self._zygote, None
            await asyncio.to_thread(zygote.close)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _session(pid: int) -> int | None:
    """The session that a process belongs to; None once it is gone."""
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid)
    return None
