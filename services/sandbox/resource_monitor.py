"""Enforces limits that the kernel does not: memory and disk of all processes of a run together."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.services.sandbox.outside_memory import outside_bytes
from agentrl.services.sandbox.process_tree import resident_bytes
from agentrl.services.sandbox.run_files import disk_use
from agentrl.services.sandbox.run_limits import MIB, RunLimits, memory_excess
from agentrl.services.sandbox.sandbox_lifecycle import Sandbox

_PERIOD_S = 0.1


class ResourceMonitor:
    """Checks every watched sandbox a few times a second and stops one that exceeds its limits.

    Between two checks a run can exceed its limits, by as much as its resource limits allow each process; its memory
    only where it has no memory cgroup.
    """

    def __init__(self) -> None:
        self._watched: dict[Sandbox, RunLimits] = {}
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def watch(self, sandbox: Sandbox, limits: RunLimits) -> Iterator[None]:
        """Watch a sandbox inside the block."""
        if sandbox.memory is not None:
            try:
                sandbox.memory.limit(limits.memory_mb)
            except OSError:  # it holds more already
                sandbox.stop(memory_excess(limits.memory_mb))
        self._watched[sandbox] = limits
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            del self._watched[sandbox]

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _look(self) -> None:
        while self._watched:
            await asyncio.sleep(_PERIOD_S)
            for sandbox, limits in list(self._watched.items()):
                reason = await asyncio.to_thread(_excess, sandbox, limits) if sandbox.alive else None
                if reason is not None and sandbox in self._watched:
                    sandbox.stop(reason)


def _excess(sandbox: Sandbox, limits: RunLimits) -> str | None:
    pids, work = sandbox.pids, sandbox.folder
    outside, unlinked = outside_bytes(pids, sandbox.isolation.has_own_root, sandbox.owner, os.stat(work).st_dev)
    if sandbox.memory is not None:
        if (excess := sandbox.memory.excess) is not None:
            return excess
    elif resident_bytes(pids, limits.memory_mb * MIB - outside) + outside > limits.memory_mb * MIB:
        return memory_excess(limits.memory_mb)
    if sandbox.overspent:
        return "what it left running used too much processor time"
    used = disk_use(work)
    if used is None:
        return "it made too many files or folders"
    if used + unlinked > limits.disk_mb * MIB:
        return f"it wrote more than {limits.disk_mb} MB of files"
    return None
