"""Sandboxes that are started in advance: a run then takes little more time than its code."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentrl.services.common.logs import log
from agentrl.services.common.server_folder import remove_folder
from agentrl.services.sandbox.isolation import Isolation
from agentrl.services.sandbox.launcher_process import make_run_folder, start_launcher
from agentrl.services.sandbox.run_limits import MIB
from agentrl.services.sandbox.sandbox_lifecycle import Sandbox, SandboxFault
from agentrl.services.sandbox.zygote_pool import ZygotePool

_PAUSE_S = 1.0


class SandboxPool:
    """Makes sandboxes and keeps some ready. Each is used once.

    Args:
        isolation: how they are isolated.
        runs_folder: folder for their folders.
        uids: users for their code.
        warm: how many are kept ready.
        output_mb: what is kept of each output stream.
    """

    def __init__(self, isolation: Isolation, runs_folder: Path, uids: range, warm: int, output_mb: int) -> None:
        self.isolation = isolation
        self.open: set[Sandbox] = set()
        """All that exist, ready or in use."""
        self._runs_folder, self._warm = runs_folder, warm
        self.output_bytes = output_mb * MIB
        """Kept of each output stream."""
        self._free_uids = deque(uids)
        self._numbers = itertools.count()
        self._zygotes = ZygotePool(isolation, runs_folder) if isolation.has_own_root else None
        self._ready: deque[Sandbox] = deque()
        self._starting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def ready(self) -> int:
        """Sandboxes that wait for a job."""
        return len(self._ready)

    def fill(self) -> None:
        """Start what is missing, without waiting for it."""
        while not self._closed and len(self._ready) + self._starting < self._warm:
            self._starting += 1
            self._spawn(self._add())

    @asynccontextmanager
    async def sandbox(self) -> AsyncIterator[Sandbox]:
        """A sandbox that is up; closed at the end of the block, in the background.

        Raises:
            SandboxFault: none comes up.
        """
        sandbox = None
        while self._ready and sandbox is None:
            sandbox = self._ready.popleft()
            if not sandbox.alive:
                self._spawn(self._close(sandbox))
                sandbox = None
        sandbox = sandbox or await self._start()
        self.fill()
        try:
            yield sandbox
        finally:
            self._spawn(self._close(sandbox))

    async def close(self) -> None:
        """End every sandbox."""
        self._closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(self._close(sandbox) for sandbox in list(self.open)))
        if self._zygotes is not None:
            await self._zygotes.close()

    async def _add(self) -> None:
        try:
            sandbox = await self._start()
        except SandboxFault as error:
            log(logging.WARNING, "no sandbox", reason=str(error))
            await asyncio.sleep(_PAUSE_S)
        else:
            self._ready.append(sandbox)
        finally:
            self._starting -= 1
        self.fill()

    async def _start(self) -> Sandbox:
        if self._closed:
            raise SandboxFault("the service is stopping")
        if not self._free_uids:
            raise SandboxFault("every user id is in use")
        uid = self._free_uids.popleft()
        folder = self._runs_folder / f"run-{next(self._numbers)}"
        starting = asyncio.create_task(self._make(folder, uid))  # a cancelled wait would lose the launcher's word
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._spawn(self._close_when_up(starting))
            raise

    async def _make(self, folder: Path, uid: int) -> Sandbox:
        owner = uid if self.isolation.own_users else None
        cgroups = self.isolation.memory_cgroups
        memory = None
        try:
            memory = None if cgroups is None else cgroups.take()
            make_run_folder(folder, owner, self.isolation.has_own_root)
            launcher = (
                await self._zygotes.start(folder) if self._zygotes else start_launcher(self.isolation, folder, owner)
            )
            sandbox = Sandbox(self.isolation, folder, uid, launcher, self.output_bytes, memory)
        except OSError as error:
            self._free_uids.append(uid)
            if memory is not None:
                memory.remove()
            with contextlib.suppress(OSError):  # no file descriptors are left
                remove_folder(folder)
            raise SandboxFault(f"cannot start a sandbox: {error}") from error
        self.open.add(sandbox)
        try:
            await sandbox.ready()
        except SandboxFault:
            self._spawn(self._close(sandbox))
            raise
        return sandbox

    async def _close_when_up(self, starting: asyncio.Task[Sandbox]) -> None:
        """Ended in the middle of its start, it would leave processes that nobody knows of."""
        with contextlib.suppress(SandboxFault):
            await self._close(await starting)

    async def _close(self, sandbox: Sandbox) -> None:
        await sandbox.close()
        if sandbox.memory is not None and self.isolation.memory_cgroups is not None:
            self.isolation.memory_cgroups.give_back(sandbox.memory)
        self.open.discard(sandbox)
        self._free_uids.append(sandbox.uid)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
