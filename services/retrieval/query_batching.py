"""Queries of concurrent requests are searched together: while a search runs, the next batch gathers."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fastapi import HTTPException
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agentrl.services.retrieval.options import RetrievalOptions
from agentrl.services.retrieval.protocol import FoundDocuments
from agentrl.services.retrieval.reloadable_index import IndexGeneration, ReloadableIndex

_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class _Ask:
    """Some queries of one request."""

    queries: list[str]
    k: int
    loaded: IndexGeneration
    """The index with which the request began."""
    answer: asyncio.Future[list[FoundDocuments]]


class SearchMetrics:
    """What `/metrics` says about searches."""

    def __init__(self, registry: CollectorRegistry) -> None:
        prefix = "agentrl_retrieval"
        self.queries = Counter(f"{prefix}_queries", "Queries answered", registry=registry)
        self.cached = Counter(f"{prefix}_cache_hits", "Queries answered from the cache", registry=registry)
        self.waiting = Gauge(f"{prefix}_queries_waiting", "Queries that wait for a thread", registry=registry)
        self.batch = Histogram(
            f"{prefix}_batch_queries", "Queries searched together", buckets=_BATCH_BUCKETS, registry=registry
        )
        self.seconds = Histogram(f"{prefix}_search_seconds", "Time of one search", registry=registry)


class QueryBatcher:
    """Searches for all requests of a server.

    Args:
        served_index: the index.
        options: sizes and limits.
        metrics: counters.
    """

    def __init__(self, served_index: ReloadableIndex, options: RetrievalOptions, metrics: SearchMetrics) -> None:
        self._served_index, self._options, self._metrics = served_index, options, metrics
        self._asks: deque[_Ask] = deque()
        self._waiting = 0
        self._running: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(max(options.threads, 1), thread_name_prefix="search")

    async def find(self, queries: list[str], k: int) -> list[FoundDocuments]:
        """Documents of each query.

        Raises:
            HTTPException: 429 when too many queries wait, 504 when the time is over.
        """
        self._metrics.queries.inc(len(queries))
        loaded = self._served_index.current
        results = [loaded.cache.get(query, k) for query in queries]
        missing = list(dict.fromkeys(query for query, found in zip(queries, results, strict=True) if found is None))
        if len(missing) < len(queries):
            self._metrics.cached.inc(sum(found is not None for found in results))
        new = await self._search(missing, k, loaded) if missing else {}
        return [found if found is not None else new[query] for query, found in zip(queries, results, strict=True)]

    async def _search(self, queries: list[str], k: int, loaded: IndexGeneration) -> dict[str, FoundDocuments]:
        if self._waiting + len(queries) > self._options.max_waiting:
            raise HTTPException(
                *(429, f"{self._waiting} queries are waiting, the limit is {self._options.max_waiting}; try again"),
                headers={"Retry-After": "1"},
            )
        size, loop = self._options.max_batch, asyncio.get_running_loop()
        asks = [_Ask(queries[i : i + size], k, loaded, loop.create_future()) for i in range(0, len(queries), size)]
        self._asks.extend(asks)
        self._count(len(queries))
        self._start()
        try:
            async with asyncio.timeout(self._options.timeout_s):
                waiting = [ask.answer for ask in asks]
                answers = await asyncio.gather(*waiting) if len(waiting) > 1 else [await waiting[0]]
        except TimeoutError:
            raise HTTPException(504, f"no answer within {self._options.timeout_s:g} seconds") from None
        return dict(zip(queries, (found for answer in answers for found in answer), strict=True))

    def _count(self, change: int) -> None:
        self._waiting += change
        self._metrics.waiting.set(self._waiting)

    def _start(self) -> None:
        """Search in another thread while there are queries and threads."""
        most = self._options.threads if self._served_index.current.index.parallel else 1
        while self._asks and len(self._running) < most:
            task = asyncio.ensure_future(self._run(self._next_batch()))
            self._running.add(task)

    def _next_batch(self) -> list[_Ask]:
        """Asks of one index from the front; those whose request is gone are left out."""
        batch: list[_Ask] = []
        size = 0
        while self._asks and (not batch or size + len(self._asks[0].queries) <= self._options.max_batch):
            if batch and self._asks[0].loaded is not batch[0].loaded:
                break
            ask = self._asks.popleft()
            self._count(-len(ask.queries))
            if not ask.answer.done():
                batch.append(ask)
                size += len(ask.queries)
        return batch

    async def _run(self, batch: list[_Ask]) -> None:
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._search_now, batch)
        await asyncio.wait([work])
        self._running -= {asyncio.current_task()}
        self._start()
        problem = work.exception()
        for place, ask in enumerate(batch):
            if ask.answer.done():
                continue
            if problem is not None:
                ask.answer.set_exception(problem)
                continue
            found = work.result()[place]
            for query, documents in zip(ask.queries, found, strict=True):
                ask.loaded.cache.put(query, ask.k, documents)
            ask.answer.set_result(found)

    def _search_now(self, batch: list[_Ask]) -> list[list[FoundDocuments]]:
        """Results per ask; a query that several of them have is searched once."""
        queries = list(dict.fromkeys(query for ask in batch for query in ask.queries))
        if not queries:
            return []
        self._metrics.batch.observe(len(queries))
        with self._metrics.seconds.time():
            found = dict(zip(queries, batch[0].loaded.index.search(queries, max(ask.k for ask in batch)), strict=True))
        return [[found[query][: ask.k] for query in ask.queries] for ask in batch]

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)
