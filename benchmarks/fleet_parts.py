"""Parts of `fleet.py` that need no fleet: the router alone, the exchange with an engine, the manager at full size.

Each returns CPU-ms of this process per turn.
"""

from __future__ import annotations

import asyncio
import copy
import pickle
import queue
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from agent_loop import QUESTION, InstantRouter

from agentrl.config.root import RunConfig
from agentrl.data_proto import DataProto
from agentrl.inference.client import EngineClient
from agentrl.inference.router import Router
from agentrl.rollout.gc_pause import seldom_collected
from agentrl.rollout.manager import AgentLoopManager
from agentrl.rollout.pools.scheduling import ChunkFuture, share_slots
from agentrl.rollout.records import ChunkResult, Job, RolloutRow, StepInfo
from agentrl.types import GenerationOutput, JsonDict, Sample

GROUP = 8
PLAYS = 4
"""How often a place is taken by another trajectory where the router or the exchange is measured."""
VERSION = 0
Turn = Callable[[str, int], Awaitable[Any]]
"""One turn of a trajectory: its id and the turn's number."""


def batch(count: int, step: int) -> DataProto:
    """Rows in groups that ask the same; `step` 0 is answered at once (see `fleet_engine`)."""
    samples = []
    for group in range(-(-count // GROUP)):
        prompt = [{"role": "user", "content": f"Case {group}. {QUESTION}"}]
        samples += [Sample(group, prompt, "openai/gsm8k", reward_model={"ground_truth": "304"})] * GROUP
    uids = [sample.index for sample in samples[:count]]
    meta = {"global_step": step, "weight_version": VERSION}
    return DataProto({}, {"sample": samples[:count], "uid": uids}, meta)


@dataclass(frozen=True)
class Recorded:
    """What one trajectory sends, gets and leaves behind."""

    requests: list[tuple[list[int], JsonDict]]
    answers: list[GenerationOutput]
    row: RolloutRow

    @property
    def turns(self) -> int:
        return len(self.requests)


class _RecordingRouter(InstantRouter):
    def __init__(self, turns: Sequence[list[int]]) -> None:
        super().__init__(turns)
        self.requests: list[tuple[list[int], JsonDict]] = []
        self.answers: list[GenerationOutput] = []

    async def generate(self, trajectory_id: str, prompt_ids: list[int], params: Any, **rest: Any) -> GenerationOutput:
        self.requests.append((list(prompt_ids), dict(params)))
        self.answers.append(await super().generate(trajectory_id, prompt_ids, params, **rest))
        return self.answers[-1]


def record(config: RunConfig, script: Sequence[list[int]]) -> Recorded:
    """Play one trajectory without an engine."""
    manager = AgentLoopManager(config, ["http://nowhere"], backend="local")
    try:
        router = _RecordingRouter(script)
        manager._pool._worker._router = router  # type: ignore[attr-defined]
        job = Job(0, batch(1, 0).non_tensor_batch["sample"][0], 0)
        row = manager._pool.submit(0, [job], StepInfo(weight_version=VERSION)).result(60).rows[0]
    finally:
        manager.shutdown()
    assert row.error is None, row.error
    return Recorded(router.requests, router.answers, row)


async def _cost_ms(count: int, turns: int, turn: Turn, end: Callable[[str], None] = lambda _: None) -> float:
    """CPU-ms per turn of that many trajectories at the same time, and as many after them."""

    async def trajectory(name: str) -> None:
        for _ in range(PLAYS):
            for number in range(turns):
                await turn(name, number)
            end(name)

    with seldom_collected():  # as in a worker
        began = time.process_time()
        await asyncio.gather(*(trajectory(f"train-0-{row}-0") for row in range(count)))
        return 1000 * (time.process_time() - began) / (count * turns * PLAYS)


def router_ms(found: Recorded, engines: int, count: int) -> float:
    """What the router adds to clients that answer at once.

    Its own work only: choosing and remembering the engine, two deadlines, the watch, the versions of the answer. The
    tasks and the clients are subtracted.
    """

    class Answering(EngineClient):
        async def generate(self, prompt_ids: Any, sampling_params: Any, rid: Any = None, pictures: Any = None) -> Any:
            await asyncio.sleep(0)  # all trajectories are in flight before the first goes on
            return found.answers[int(rid.rpartition("-")[2])]

    async def both() -> float:
        addresses = [f"http://engine-{number}" for number in range(engines)]
        router = Router(addresses, vocab_size=2**31, weight_version=VERSION, client=Answering)
        client = Answering(addresses[0], vocab_size=2**31)

        async def bare(name: str, number: int) -> None:
            await client.generate(*found.requests[number], f"{name}-{number}")

        async def routed(name: str, number: int) -> None:
            await router.generate(name, *found.requests[number], rid=f"{name}-{number}", timeout_s=600.0)

        with_router = await _cost_ms(count, found.turns, routed, router.release)
        without = await _cost_ms(count, found.turns, bare)
        await router.close()
        return with_router - without

    return asyncio.run(both())


def exchange_ms(found: Recorded, addresses: Sequence[str], count: int) -> dict[str, float]:
    """The same bodies to the same engines by bare httpx, by agentrl's client, and by the router over its clients."""

    async def by_httpx() -> float:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=count)
        async with httpx.AsyncClient(timeout=600, limits=limits, trust_env=False) as http:

            async def post(name: str, number: int) -> None:
                ids, params = found.requests[number]
                body = {"rid": f"{name}-{number}", "input_ids": ids, "sampling_params": params, "return_logprob": True}
                address = addresses[int(name.split("-")[2]) % len(addresses)]
                (await http.post(f"{address}/generate", json=body)).json()

            return await _cost_ms(count, found.turns, post)

    async def by_clients() -> float:
        clients = [EngineClient(address, vocab_size=2**31) for address in addresses]

        async def ask(name: str, number: int) -> None:
            client = clients[int(name.split("-")[2]) % len(clients)]
            await client.generate(*found.requests[number], f"{name}-{number}")

        cost = await _cost_ms(count, found.turns, ask)
        for client in clients:
            await client.close()
        return cost

    async def by_router() -> float:
        router = Router(addresses, vocab_size=2**31, weight_version=VERSION)

        async def ask(name: str, number: int) -> None:
            await router.generate(name, *found.requests[number], rid=f"{name}-{number}", timeout_s=600.0)

        cost = await _cost_ms(count, found.turns, ask, router.release)
        await router.close()
        return cost

    ways = {"httpx": by_httpx, "client": by_clients, "router and client": by_router}
    return {name: asyncio.run(way()) for name, way in ways.items()}


class PaperWorkers:
    """Workers of which only the manager's side exists: chunks end one after the other, and travel pickled as on Ray.

    Args:
        workers: how many.
        in_flight: slots of all of them.
        row: what every trajectory leaves behind.
    """

    def __init__(self, workers: int, in_flight: int, row: RolloutRow) -> None:
        self.slots = share_slots(in_flight, workers)
        self.chunks = 0
        self.held = 0
        """Bytes that Python had when the last chunk was sent, if it traces them."""
        self._row = row
        self._pickled: dict[int, bytes] = {}
        self._jobs: dict[ChunkFuture, Sequence[Job]] = {}
        self._sent: dict[ChunkFuture, bytes] = {}
        self._open: queue.SimpleQueue[ChunkFuture | None] = queue.SimpleQueue()
        self._next = threading.Semaphore(1)
        self._thread = threading.Thread(target=self._end_one_by_one, daemon=True)
        self._thread.start()

    def submit(self, worker: int, jobs: Sequence[Job], step: StepInfo) -> ChunkFuture:
        self.chunks += 1
        future: ChunkFuture = Future()
        self._jobs[future], self._sent[future] = jobs, pickle.dumps((list(jobs), step))
        self.held = tracemalloc.get_traced_memory()[0]
        self._open.put(future)
        return future

    def result(self, worker: int, future: ChunkFuture) -> ChunkResult:
        jobs, _ = self._jobs.pop(future), self._sent.pop(future)
        chunk: ChunkResult = pickle.loads(self._rows(len(jobs)))
        for job, row in zip(jobs, chunk.rows, strict=True):
            row.row = job.row
        self._next.release()
        return chunk

    def cancel(self) -> None: ...

    def set_addresses(self, addresses: Sequence[str]) -> None: ...

    def shutdown(self) -> None:
        self._open.put(None)
        self._next.release()
        self._thread.join()

    def _end_one_by_one(self) -> None:
        """The next chunk ends once the manager has taken the last one: it never finds two that have ended."""
        while True:
            self._next.acquire()
            future = self._open.get()
            if future is None:
                return
            future.set_result(ChunkResult([]))

    def _rows(self, count: int) -> bytes:
        if count not in self._pickled:
            self._pickled[count] = pickle.dumps(ChunkResult([copy.deepcopy(self._row) for _ in range(count)]))
        return self._pickled[count]


@contextmanager
def paper_manager(
    config: RunConfig, found: Recorded, workers: int, in_flight: int
) -> Iterator[tuple[AgentLoopManager, PaperWorkers]]:
    """A manager of workers on paper."""
    manager = AgentLoopManager(config, ["http://nowhere"], backend="local")
    manager._pool.shutdown()
    pool = PaperWorkers(workers, in_flight, found.row)
    manager._pool = pool
    try:
        yield manager, pool
    finally:
        manager.shutdown()


def manager_ms(
    config: RunConfig, found: Recorded, workers: int, in_flight: int, sizes: Sequence[int], rounds: int
) -> tuple[list[list[float]], int]:
    """The manager with that many workers, from the batch to the padded one, sizes in turns.

    Returns:
        For each size its rounds; and the chunks of the last batch.
    """
    costs: list[list[float]] = [[] for _ in sizes]
    with paper_manager(config, found, workers, in_flight) as (manager, pool):
        for _ in range(1 + rounds):  # the first pickles the rows
            for count, each in zip(sizes, costs, strict=True):
                given, chunks, began = batch(count, 0), pool.chunks, time.process_time()
                done = manager.generate_sequences(given)
                each.append(1000 * (time.process_time() - began) / (count * found.turns))
                assert len(done) == count
        return [each[1:] for each in costs], pool.chunks - chunks


def manager_kb(config: RunConfig, found: Recorded, workers: int, count: int) -> float:
    """What the manager holds for each trajectory while all are in flight: rows, jobs, and what was sent to workers."""
    with paper_manager(config, found, workers, count) as (manager, pool):
        tracemalloc.start()
        try:
            manager.generate_sequences(batch(count, 0))
        finally:
            tracemalloc.stop()
        return pool.held / count / 1000
