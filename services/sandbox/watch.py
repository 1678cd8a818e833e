"""Looks after what the kernel does not: memory and disk of all processes of a run together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.services.sandbox.folders import disk_use
from agentrl.services.sandbox.jail import Jail
from agentrl.services.sandbox.limits import MIB, Limits
from agentrl.services.sandbox.processes import resident_bytes

_PERIOD_S = 0.1


class Watch:
    """Looks at every watched sandbox a few times a second and stops one that holds too much.

    Between two looks a run can exceed its limits, by what its resource limits allow each process.
    """

    def __init__(self) -> None:
        self._watched: dict[Jail, Limits] = {}
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def over(self, jail: Jail, limits: Limits) -> Iterator[None]:
        """Watch a sandbox for as long as the block lasts."""
        self._watched[jail] = limits
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            del self._watched[jail]

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _look(self) -> None:
        while self._watched:
            await asyncio.sleep(_PERIOD_S)
            for jail, limits in list(self._watched.items()):
                reason = await asyncio.to_thread(_excess, jail, limits) if jail.alive else None
                if reason is not None and jail in self._watched:
                    jail.stop(reason)


def _excess(jail: Jail, limits: Limits) -> str | None:
    allowed = limits.memory_mb * MIB
    if resident_bytes(jail.pids, allowed) > allowed:
        return f"it used more than {limits.memory_mb} MB of memory"
    used = disk_use(jail.folder)
    if used is None:
        return "it made too many files or folders"
    if used > limits.disk_mb * MIB:
        return f"it wrote more than {limits.disk_mb} MB of files"
    return None
