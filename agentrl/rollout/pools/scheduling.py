"""Hands trajectories to workers as they become free (guided self-scheduling; Polychronopoulos & Kuck, 1987).

Chunks are large at first and small at the end: this needs few calls, and no worker is left with a long tail. A worker
holds up to `PREFETCH` times as many trajectories as it has slots, so that a slot never waits for the manager; the slots
limit what runs at the same time.
"""

from __future__ import annotations

import concurrent.futures
import logging
import math
import queue
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from agentrl.errors import WorkerError
from agentrl.inference.engine_load import EngineLoad
from agentrl.rollout.records import ChunkResult, Job, RolloutRow, StepInfo, TokenArrays
from agentrl.types import StopReason

logger = logging.getLogger(__name__)

PREFETCH = 2
PROGRESS_S = 1.0
"""Between two looks at how many trajectories have ended."""
MAX_TRIES = 2
"""A chunk whose worker died is run once more; if that worker dies too, its trajectories are left out."""

ChunkFuture = concurrent.futures.Future[ChunkResult]
Progress = Callable[[int, int], None]
"""Is told how many of how many trajectories have ended."""


class WorkerLostError(WorkerError):
    """An agent-loop worker's process ended, and with it the chunk that it was running.

    Attributes:
        machine: whether the whole machine is lost, which no trajectory has caused.
    """

    def __init__(self, message: str, *, machine: bool = False) -> None:
        super().__init__(message)
        self.machine = machine


class WorkerPool(Protocol):
    """Workers that run chunks."""

    slots: list[int]
    """For each worker: most trajectories at the same time."""

    def submit(self, worker: int, jobs: Sequence[Job], step: StepInfo) -> ChunkFuture:
        """Start a chunk on a worker."""

    def result(self, worker: int, future: ChunkFuture) -> ChunkResult:
        """A finished chunk.

        Raises:
            WorkerLostError: the worker died; the next `submit` to it starts a new one.
        """

    def finished(self) -> int:
        """Trajectories that have ended so far, of all batches; it may miss some."""

    def cancel(self) -> None:
        """End every running trajectory."""

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Use these engines from now on."""

    def engine_loads(self, timeout_s: float) -> list[dict[str, EngineLoad]]:
        """By worker, what each engine does for it; a worker that does not answer is left out. For any thread."""

    def shutdown(self) -> None:
        """End every trajectory and every worker."""


def share_slots(limit: int, workers: int) -> list[int]:
    """Divide the global limit of trajectories in flight; workers that would get none are not started."""
    used = min(workers, limit)
    return [limit // used + (index < limit % used) for index in range(used)]


def run_jobs(
    pool: WorkerPool, jobs: Sequence[Job], step: StepInfo, progress: Progress | None = None
) -> list[ChunkResult]:
    """Run every job; blocks until all have ended. Ctrl-C ends them.

    Args:
        pool: the workers.
        jobs: the trajectories.
        step: whose they are.
        progress: hears about once a second how many of how many have ended.
    """
    try:
        return _Dispatch(pool, jobs, step, progress).run()
    except BaseException:
        pool.cancel()
        raise


class _Dispatch:
    """One batch that is being run by the workers."""

    def __init__(self, pool: WorkerPool, jobs: Sequence[Job], step: StepInfo, progress: Progress | None) -> None:
        self._pool = pool
        self._step = step
        self._queue = deque(jobs)
        self._load = [0] * len(pool.slots)
        self._running: dict[ChunkFuture, tuple[int, list[Job]]] = {}
        self._ended: queue.SimpleQueue[ChunkFuture] = queue.SimpleQueue()
        self._tries: dict[int, int] = {}
        self._told: set[str] = set()
        self._results: list[ChunkResult] = []
        self._progress, self._total = progress, len(jobs)
        self._before = pool.finished() if progress is not None else 0

    def run(self) -> list[ChunkResult]:
        """Hand out chunks and collect results until all jobs have ended."""
        # Chunks announce their end. To wait for any of them would be to look at all of them for each one that ends:
        # 128 workers with 1,088 chunks of a batch would be looked at 590,000 times.
        while self._queue or self._running:
            self._hand_out()
            self._collect(self._next())
            while not self._ended.empty():
                self._collect(self._ended.get())
        return self._results

    def _next(self) -> ChunkFuture:
        """The next chunk that ends; meanwhile, progress is told."""
        while self._progress is not None:
            with suppress(queue.Empty):
                return self._ended.get(timeout=PROGRESS_S)
            self._progress(min(max(self._pool.finished() - self._before, 0), self._total), self._total)
        return self._ended.get()

    def _hand_out(self) -> None:
        # Each chunk is half of a worker's fair share of what is left, and goes to the worker with the most room. Of 256
        # trajectories on two workers with 32 slots each (64 with what is prefetched), the chunks are
        #   worker 0: ceil(256 / 4) = 64, now full        worker 1: ceil(192 / 4) = 48, then 16, now full
        # and later, with 10 trajectories left and room for them: 3, 2, 2, 1, 1, 1. Large chunks save calls while there
        # is work for all; small ones at the end go to whoever is done first, so nobody is left with a long tail.
        while self._queue:
            free = [PREFETCH * slots - load for slots, load in zip(self._pool.slots, self._load, strict=True)]
            worker = max(range(len(free)), key=free.__getitem__)
            if free[worker] <= 0:
                return
            size = min(math.ceil(len(self._queue) / (2 * len(free))), free[worker])
            chunk = [self._queue.popleft() for _ in range(size)]
            self._load[worker] += size
            future = self._pool.submit(worker, chunk, self._step)
            self._running[future] = worker, chunk
            future.add_done_callback(self._ended.put)

    def _collect(self, future: ChunkFuture) -> None:
        worker, chunk = self._running.pop(future)
        self._load[worker] -= len(chunk)
        try:
            result = self._pool.result(worker, future)
            result.worker = worker
            self._results.append(result)
        except WorkerLostError as error:
            self._try_again(chunk, error)

    def _try_again(self, chunk: list[Job], error: WorkerLostError) -> None:
        lost = []
        for job in chunk:
            self._tries[job.row] = self._tries.get(job.row, 1) + (not error.machine)
            if self._tries[job.row] > MAX_TRIES:
                lost.append(_lost_row(job, error))
            else:
                self._queue.append(job)
        if str(error) not in self._told:  # once, not for each chunk that the worker had
            self._told.add(str(error))
            logger.warning("%s: a new worker takes its place and runs its trajectories again", error)
        if lost:
            self._results.append(ChunkResult(lost))


def _lost_row(job: Job, error: WorkerLostError) -> RolloutRow:
    return RolloutRow(job.row, TokenArrays.empty(), StopReason.ENV_ERROR, error=f"WorkerLostError: {error}")
