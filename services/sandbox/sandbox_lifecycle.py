"""One sandbox from start to end: a launcher that waits, its job, and a clean-up that leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.services.common.server_folder import remove_folder
from agentrl.services.sandbox.isolation import Isolation
from agentrl.services.sandbox.launcher_process import Ended, LauncherProcess, encode_job, encode_message
from agentrl.services.sandbox.memory_cgroup import MemoryCgroup
from agentrl.services.sandbox.process_tree import descendants, kill_tree, signal_quietly, threads_of
from agentrl.services.sandbox.run_clock import RunClock, longest_wait, processor_seconds
from agentrl.services.sandbox.standard_streams import InputWriter, OutputReader

START_S = 20.0
"""A sandbox that is not up by then is broken, or the machine is."""
_GONE_S = 5.0
_SHOWN_BYTES = 500


class SandboxFault(Exception):
    """The sandbox could not run the code; says nothing about the code."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a program ended: its code (128 + signal where a signal ended it), the time it took, who stopped it."""

    code: int
    seconds: float
    cpu_s: float
    timed_out: bool


class Sandbox:
    """A started sandbox. Use once, then `close`.

    Args:
        isolation: how it is kept apart.
        folder: its own folder.
        uid: the user that its code becomes where the isolation gives runs users of their own.
        launcher: its launcher, which waits for a job.
        output_bytes: what is kept of each output stream.
        memory: its memory cgroup; None: there is none.
    """

    def __init__(
        self,
        isolation: Isolation,
        folder: Path,
        uid: int,
        launcher: LauncherProcess,
        output_bytes: int,
        memory: MemoryCgroup | None = None,
    ) -> None:
        self.isolation, self.folder, self.uid, self.memory = isolation, folder, uid, memory
        self.stopped: str | None = None
        """Why the server stopped the code before its time, for example its memory."""
        self._loop = asyncio.get_running_loop()
        self._exited = asyncio.Event()
        self._launcher, self._control, self._pid = launcher, launcher.control, launcher.pid
        self._ended = Ended(0, 0.0)
        self._clock: RunClock | None = None
        self._allowed_cpu_s: float | None = None
        self._control.setblocking(False)
        self._pidfd = os.pidfd_open(self._pid)
        self._loop.add_reader(self._pidfd, self._on_exit)
        self._input_writer: InputWriter | None = None
        self.stdout = OutputReader(launcher.stdout, output_bytes)
        self.stderr = OutputReader(launcher.stderr, output_bytes)
        self._stdin = launcher.stdin
        if self.owner is not None:  # the code may open them by name, as `/dev/stdin`
            for fd in (launcher.stdin, launcher.stdout, launcher.stderr):
                os.fchown(fd, self.owner, self.owner)

    @property
    def work(self) -> Path:
        """The code's folder, from outside."""
        return self.folder / "work"

    @property
    def owner(self) -> int | None:
        """Whom its files belong to; None: the server's own user."""
        return self.uid if self.isolation.own_users else None

    @property
    def alive(self) -> bool:
        """The launcher, or the program that it became, still runs."""
        return not self._exited.is_set()

    @property
    def pids(self) -> list[int]:
        """All processes of the sandbox, its own first."""
        if not self.alive:
            return []
        return [*([self._pid] if self._launcher.is_first else []), *descendants(self._pid)]

    @property
    def has_unread(self) -> bool:
        """Something came from inside that nobody has received yet."""
        try:
            return bool(self._control.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    @property
    def overspent(self) -> bool:
        """Its processes have used more than `limit_cpu` allows."""
        return self._allowed_cpu_s is not None and processor_seconds(self._counted()) > self._allowed_cpu_s

    def limit_cpu(self, seconds: float | None) -> None:
        """Allow its processes so much processor time from now on; None: no limit but that of `wait`."""
        self._allowed_cpu_s = None if seconds is None else processor_seconds(self._counted()) + seconds

    def start_clock(self, waited: bool = False) -> RunClock:
        """A clock of all its processes.

        Args:
            waited: some have run before, and may have waited for a processor then.
        """
        return RunClock(self._counted, longest_wait(self._counted()) if waited else 0.0)

    async def ready(self) -> None:
        """Wait until the launcher is up.

        Raises:
            SandboxFault: it does not start.
        """
        await self._expect(b"R")
        if self.memory is not None:
            await self._count_memory(self.memory)

    async def begin(self, job: dict[str, Any], stdin: bytes | None) -> None:
        """Give the launcher its job and wait for the moment in which the code starts.

        Args:
            job: see `guest/launcher.py`.
            stdin: what the code reads; None: nothing yet.

        Raises:
            SandboxFault: it cannot start.
        """
        if self.owner is None and not self.isolation.has_own_root:
            # The kernel counts every thread of the user, and this one is the server's, who has others.
            limits = job["limits"]
            job = {**job, "limits": {**limits, "RLIMIT_NPROC": limits["RLIMIT_NPROC"] + threads_of(os.geteuid())}}
        await self.pass_on(encode_job(job, self.isolation, self.folder, self.owner))
        await self._expect(b"S")
        self._clock = self.start_clock()
        if stdin is not None:
            self._input_writer = InputWriter(self._stdin, stdin)
            self._stdin = -1

    async def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message to the program inside, behind a byte with file descriptors if there are any."""
        if fds:
            with contextlib.suppress(OSError):  # as in `pass_on`
                socket.send_fds(self._control, [b"F"], fds)
        await self.pass_on(encode_message(message))

    def hang_up(self) -> None:
        """Let the program inside see that nothing more comes."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    async def receive(self, size: int) -> bytes:
        """The next bytes from inside; empty if the program has closed the socket."""
        try:
            return await self._loop.sock_recv(self._control, size)
        except ConnectionError:
            return b""

    def interrupt(self) -> None:
        """Send SIGINT, like Ctrl-C, to every process of the sandbox except the first, which is not the code's."""
        for pid in self.pids[1:] if self.isolation.has_own_root else self.pids:
            signal_quietly(pid, signal.SIGINT)

    async def wait(self, limit_s: float) -> ExitStatus:
        """Wait until the code ends, or end it; afterwards no process is left and the output is complete.

        Args:
            limit_s: see `run_clock`.
        """
        assert self._clock is not None
        exited = asyncio.ensure_future(self._exited.wait())
        try:
            timed_out = not await self._clock.watch(exited, limit_s)
        finally:
            exited.cancel()
        seconds = self._clock.wall_s
        await self.kill()
        code, total_s = self._ended
        cpu_s = self._clock.conclude(total_s)
        return ExitStatus(code if code >= 0 else 128 - code, seconds, cpu_s, timed_out)

    def stop(self, reason: str) -> None:
        """End the code before its time."""
        if self.alive and self.stopped is None:
            self.stopped = reason
            self._end()

    async def kill(self) -> None:
        """End every process and read what output is left."""
        if self.alive:
            self._end()
            if not await self._came(self._exited):
                await asyncio.to_thread(kill_tree, self._pid)
                await self._came(self._exited)
        if self.memory is not None and self.stopped is None:
            self.stopped = self.memory.excess
        for reader in (self.stdout, self.stderr):
            await self._came(reader.ended)
            reader.close()

    async def close(self) -> None:
        """End everything and remove the folder."""
        await self.kill()
        if self._input_writer is not None:
            self._input_writer.close()
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
        self._control.close()
        await asyncio.to_thread(remove_folder, self.folder)

    async def _count_memory(self, memory: MemoryCgroup) -> None:
        """Move the launcher; the processes around it are not the code's."""
        *_, launcher = (self._pid, *descendants(self._pid))
        try:
            await asyncio.to_thread(memory.add, launcher)  # the kernel may take 10 ms
        except OSError as error:
            raise SandboxFault(f"the sandbox died while it started: {error}") from error

    async def pass_on(self, data: bytes) -> None:
        """Send bytes to the program inside as they are."""
        with contextlib.suppress(OSError):  # who waits for the answer sees that it is gone
            await self._loop.sock_sendall(self._control, data)

    def _counted(self) -> list[int]:
        """The processes whose time counts; unlike `pids` with what starts and ends them, as at its end."""
        return [self._pid, *descendants(self._pid)] if self.alive else []

    async def _expect(self, mark: bytes) -> None:
        try:
            async with asyncio.timeout(START_S):
                got = await self.receive(1)
        except TimeoutError:
            raise SandboxFault(f"the sandbox did not answer within {START_S:g} s") from None
        if got != mark:
            await self._came(self._exited)
            errors = self.stderr.take()[-_SHOWN_BYTES:].decode(errors="replace").strip()
            raise SandboxFault(f"the sandbox did not start: {errors or 'no reason given'}")

    def _end(self) -> None:
        # When the first process of a namespace dies, the kernel ends the others; elsewhere the supervisor does.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        signal_quietly(self._pid, signal.SIGKILL if self._launcher.is_first else signal.SIGTERM)

    async def _came(self, event: asyncio.Event, timeout_s: float = _GONE_S) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return False
        return True

    def _on_exit(self) -> None:
        self._ended = self._launcher.reap()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._exited.set()
