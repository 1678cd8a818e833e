"""The index that is being served, and its replacement by a newer one while requests run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from agentrl.errors import UserInputError
from agentrl.services.common.logs import log
from agentrl.services.retrieval.index import Index
from agentrl.services.retrieval.result_cache import ResultCache


class IndexGeneration:
    """One generation of the index, with its own cache: a result never outlives its index."""

    def __init__(self, index: Index, generation: int, cache_bytes: int) -> None:
        self.index, self.generation, self.cache = index, generation, ResultCache(cache_bytes)
        self.loaded_at = time.time()

    def about(self) -> dict[str, Any]:
        """What `/health` says."""
        return {**self.index.about, "generation": self.generation, "loaded_at": round(self.loaded_at, 3)}


class ReloadableIndex:
    """Holds the current generation.

    Running requests keep the generation that they began with; its files stay open until the last of them is answered.

    Args:
        load: opens the index; called again at each reload, in a thread.
        cache_bytes: see `ResultCache`.

    Raises:
        UserInputError: the index cannot be used.
    """

    def __init__(self, load: Callable[[], Index], cache_bytes: int) -> None:
        self._load, self._cache_bytes = load, cache_bytes
        self.current = IndexGeneration(load(), 1, cache_bytes)
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[IndexGeneration]] = set()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the event loop in which `request_reload` reloads."""
        self._loop = loop

    async def reload(self) -> IndexGeneration:
        """Open the index again and exchange it; the old one serves meanwhile, and afterwards if the new one is broken.

        Raises:
            UserInputError: the new one cannot be used.
        """
        async with self._lock:
            try:
                index = await asyncio.to_thread(self._load)
            except UserInputError as error:
                log(logging.ERROR, "reload failed", reason=str(error), generation=self.current.generation)
                raise
            self.current = IndexGeneration(index, self.current.generation + 1, self._cache_bytes)
            log(logging.INFO, "reloaded", **self.current.about())
            return self.current

    def request_reload(self) -> None:
        """Reload soon; for signal handlers."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._start_reload)

    def _start_reload(self) -> None:
        task = asyncio.ensure_future(self.reload())
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[IndexGeneration]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, UserInputError):  # those `reload` has logged
            log(logging.ERROR, "reload failed", reason=f"{type(error).__name__}: {error}")
