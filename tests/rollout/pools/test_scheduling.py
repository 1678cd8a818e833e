"""Handing out: everything runs once, slots are never exceeded, faster workers get more, dead ones are replaced."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.rollout.pools import scheduling
from agentrl.rollout.pools.scheduling import PREFETCH, ChunkFuture, WorkerLostError, run_jobs, share_slots
from agentrl.rollout.records import ChunkResult, Job, RolloutRow, StepInfo, TokenArrays
from agentrl.rollout.seeds import sampling_seed
from agentrl.types import Sample, StopReason


def jobs(count: int) -> list[Job]:
    return [Job(i, Sample(i, [], "x"), 0) for i in range(count)]


class ThreadPool:
    """Workers that take `seconds[worker]` per chunk and die at the given rows."""

    def __init__(self, slots: list[int], seconds: Sequence[float] = (), deadly: Sequence[int] = ()) -> None:
        self.slots = slots
        self.chunks: list[tuple[int, int]] = []
        self.held: Counter[int] = Counter()
        self.most_held: Counter[int] = Counter()
        self.cancelled = False
        self.deaths = 0
        self.asked = 0
        self._seconds = seconds
        self._deadly = set(deadly)
        self._threads = ThreadPoolExecutor(16)
        self._lock = threading.Lock()

    def submit(self, worker: int, jobs: Sequence[Job], step: StepInfo) -> ChunkFuture:
        with self._lock:
            self.chunks.append((worker, len(jobs)))
            self.held[worker] += len(jobs)
            self.most_held[worker] = max(self.most_held[worker], self.held[worker])
        return self._threads.submit(self._run, worker, list(jobs))

    def _run(self, worker: int, jobs: list[Job]) -> ChunkResult:
        if self._seconds:
            time.sleep(self._seconds[worker] * len(jobs))
        with self._lock:
            self.held[worker] -= len(jobs)
        if self._deadly & {job.row for job in jobs}:
            self.deaths += 1
            raise WorkerLostError(f"worker {worker} died")
        return ChunkResult([RolloutRow(job.row, TokenArrays.empty(), StopReason.COMPLETED) for job in jobs])

    def result(self, worker: int, future: Future[ChunkResult]) -> ChunkResult:
        return future.result()

    def finished(self) -> int:
        self.asked += 1
        return 100 + 7 * (self.asked - 1)

    def cancel(self) -> None:
        self.cancelled = True

    def set_addresses(self, addresses: Sequence[str]) -> None: ...

    def shutdown(self) -> None:
        self._threads.shutdown()


def rows_of(results: list[ChunkResult]) -> list[int]:
    return sorted(row.row for result in results for row in result.rows)


def test_progress_counts_what_has_ended_since_the_batch_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "PROGRESS_S", 0.01)
    pool, told = ThreadPool([40]), list[tuple[int, int]]()
    enough = threading.Event()
    run = pool._run
    pool._run = lambda worker, chunk: enough.wait(30) and run(worker, chunk)  # type: ignore[method-assign]

    def progress(done: int, total: int) -> None:
        told.append((done, total))
        if len(told) == 4:
            enough.set()

    assert rows_of(run_jobs(pool, jobs(20), StepInfo(), progress)) == list(range(20))
    assert told[:4] == [(7, 20), (14, 20), (20, 20), (20, 20)]  # of 100 that had ended before
    pool.asked = 0
    run_jobs(pool, jobs(20), StepInfo())
    assert pool.asked == 0
    pool.shutdown()


@given(st.integers(0, 300), st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_every_job_runs_once_within_the_slots(count: int, slots: list[int]) -> None:
    pool = ThreadPool(slots)
    assert rows_of(run_jobs(pool, jobs(count), StepInfo())) == list(range(count))
    for worker, most in pool.most_held.items():
        assert most <= PREFETCH * slots[worker]
    pool.shutdown()


def test_few_calls_and_small_chunks_at_the_end() -> None:
    pool = ThreadPool([1024, 1024])
    run_jobs(pool, jobs(1024), StepInfo())
    sizes = [size for _, size in pool.chunks]
    assert sizes[0] == 256
    assert sizes[-1] == 1
    assert len(sizes) < 30
    pool.shutdown()


def test_chunks_that_run_are_not_looked_at_whenever_one_ends() -> None:
    """Else a batch costs the square of its chunks, and so of the workers."""
    looks = Counter[int]()

    class Watched(threading.Condition):
        def __enter__(self) -> bool:
            looks[id(self)] += 1
            return super().__enter__()

    class OneByOne(ThreadPool):
        """The next chunk ends when the last one was taken."""

        def __init__(self) -> None:
            super().__init__([1] * 100)
            self.open: list[ChunkFuture] = []

        def submit(self, worker: int, jobs: Sequence[Job], step: StepInfo) -> ChunkFuture:
            future: ChunkFuture = Future()
            future._condition = Watched()
            self.open.append(future)
            if len(self.open) == 100:
                self._threads.submit(self.end_next)
            return future

        def result(self, worker: int, future: Future[ChunkResult]) -> ChunkResult:
            if self.open:
                self._threads.submit(self.end_next)
            return super().result(worker, future)

        def end_next(self) -> None:
            self.open.pop(0).set_result(ChunkResult([]))

    pool = OneByOne()
    run_jobs(pool, jobs(100), StepInfo())
    assert len(looks) == 100
    assert max(looks.values()) < 10
    pool.shutdown()


def test_a_fast_worker_gets_more() -> None:
    pool = ThreadPool([4, 4], seconds=[0.02, 0.001])
    run_jobs(pool, jobs(120), StepInfo())
    share: Counter[int] = Counter()
    for worker, size in pool.chunks:
        share[worker] += size
    assert share[1] > 2 * share[0]
    pool.shutdown()


def test_what_takes_a_worker_down_twice_is_left_out_and_the_rest_survives() -> None:
    pool = ThreadPool([4, 4], deadly=[17])
    results = run_jobs(pool, jobs(50), StepInfo())
    assert rows_of(results) == list(range(50))
    lost = [row for result in results for row in result.rows if row.is_left_out]
    assert 17 in [row.row for row in lost]
    assert len(lost) <= 8
    assert all("WorkerLostError" in str(row.error) and row.stop_reason is StopReason.ENV_ERROR for row in lost)
    assert pool.deaths >= 2
    pool.shutdown()


def test_trajectories_of_lost_machines_are_all_run_again() -> None:
    """However many workers they were sent to before one lived: no trajectory has ended its machine."""

    class Lost(ThreadPool):
        def result(self, worker: int, future: Future[ChunkResult]) -> ChunkResult:
            if self.deaths < 6:
                self.deaths += 1
                raise WorkerLostError(f"worker {worker} died: machine 10.0.0.2 was lost", machine=True)
            return super().result(worker, future)

    pool = Lost([4, 4])
    results = run_jobs(pool, jobs(10), StepInfo())
    assert rows_of(results) == list(range(10))
    assert not any(row.is_left_out for result in results for row in result.rows)
    assert pool.deaths == 6
    pool.shutdown()


def test_other_errors_end_the_step_and_cancel_the_rest() -> None:
    class Broken(ThreadPool):
        def result(self, worker: int, future: Future[ChunkResult]) -> ChunkResult:
            raise KeyboardInterrupt

    pool = Broken([4])
    with pytest.raises(KeyboardInterrupt):
        run_jobs(pool, jobs(8), StepInfo())
    assert pool.cancelled
    pool.shutdown()


def test_share_slots() -> None:
    assert share_slots(10, 3) == [4, 3, 3]
    assert share_slots(2, 5) == [1, 1]
    assert sum(share_slots(1024, 7)) == 1024


def test_seeds_differ_wherever_the_request_does() -> None:
    step, job = StepInfo(3), Job(0, Sample(5, [], "x"), 1)
    base = sampling_seed(1, step, job, 0)
    assert base == sampling_seed(1, StepInfo(3, weight_version=9), Job(7, Sample(5, [], "x"), 1), 0)
    others = [
        sampling_seed(2, step, job, 0),
        sampling_seed(1, StepInfo(4), job, 0),
        sampling_seed(1, StepInfo(3, validate=True), job, 0),
        sampling_seed(1, step, Job(0, Sample(6, [], "x"), 1), 0),
        sampling_seed(1, step, Job(0, Sample(5, [], "x"), 2), 0),
        sampling_seed(1, step, job, 1),
    ]
    assert len({base, *others}) == 7
    assert all(0 <= seed < 2**31 for seed in [base, *others])
