"""Resources that all trajectories of one worker share: opened at first use, closed when the worker ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, cast

logger = logging.getLogger(__name__)

T = TypeVar("T")
CLOSE_TIMEOUT_S = 10.0


class WorkerScope:
    """Open resources by key: connection pools, server processes.

    Each lives in its own task, which both enters and leaves the context manager, as anyio's cancel scopes require. A
    resource that ended by itself is opened again at the next `get`.
    """

    def __init__(self) -> None:
        self._held: dict[Hashable, _Held] = {}

    async def get(self, key: Hashable, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """The resource of a key; `make` opens it if it is not open.

        Raises:
            Exception: the error that opening it raised; the next `get` tries again.
        """
        held = self._held.get(key)
        if held is None or held.task.done():
            held = self._held[key] = _Held(key, make)
        await asyncio.wait({held.ready, held.task}, return_when=asyncio.FIRST_COMPLETED)
        if not held.ready.done():
            held.task.result()  # raises the error of opening it
        return cast(T, held.ready.result())

    def peek(self, key: Hashable) -> Any:
        """The resource of a key if it is open, else None."""
        held = self._held.get(key)
        return held.ready.result() if held is not None and not held.task.done() and held.ready.done() else None

    async def drop(self, key: Hashable) -> None:
        """Close the resource of a key, if it is open."""
        held = self._held.pop(key, None)
        if held is not None:
            await held.close()

    async def close(self) -> None:
        """Close everything."""
        held, self._held = list(self._held.values()), {}
        await asyncio.gather(*(one.close() for one in held))


class _Held:
    """One open resource and the task that keeps it open."""

    def __init__(self, key: Hashable, make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self.ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._key = key
        self._stop = asyncio.Event()
        self.task = asyncio.create_task(self._keep_open(make))
        self.task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Ask the task to end; cancel it if it takes too long."""
        self._stop.set()
        _, late = await asyncio.wait({self.task}, timeout=CLOSE_TIMEOUT_S)
        if late:
            logger.warning("%s did not close within %g s", self._key, CLOSE_TIMEOUT_S)
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=CLOSE_TIMEOUT_S)

    async def _keep_open(self, make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        async with make() as value:
            self.ready.set_result(value)
            await self._stop.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self.ready.done():
            logger.warning("%s ended: %s: %s", self._key, type(error).__name__, error)
