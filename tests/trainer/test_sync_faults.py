"""A hung, a refusing and a dying engine in every phase of every transport: it is out, and the other one goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch._C._distributed_c10d import HashStore

from agentrl.errors import EngineError, EngineRequestError, EngineUnavailable
from agentrl.inference.client import EngineClient
from agentrl.inference.weights import calls as weight_calls
from agentrl.inference.weights import group_sender
from agentrl.inference.weights.buckets import specs_of
from agentrl.plugins.threads import call_in_thread
from agentrl.testing.scripted_engine import ScriptedEngine
from agentrl.trainer.phases import Phases
from agentrl.trainer.weight_sync import WeightSync
from agentrl.workers.weight_senders import SendJob, SendReport, WeightSender
from agentrl.workers.weight_source import Bucket

HANG_LIMIT_S = 5.0
"""How long a hung engine is waited for. A healthy one needs milliseconds on a quiet machine."""
PHASES = {
    "pause": "/pause_generation",
    "mark": "/update_weight_version",
    "begin": "/begin_weight_update",
    "init group": "/init_weights_update_group",
    "metadata and broadcast": "/update_weights_from_distributed",
    "bucket": "/update_weights_from_tensor",
    "load": "/update_weights_from_disk",
    "end": "/end_weight_update",
    "flush": "/flush_cache",
    "version": "/model_info",
    "continue": "/continue_generation",
}
COMMON = ("pause", "flush", "version", "continue")
OF = {
    "disk": (*COMMON, "load"),
    "ipc": (*COMMON, "mark", "begin", "bucket", "end"),
    "distributed": (*COMMON, "mark", "begin", "init group", "metadata and broadcast", "end"),
}
CASES = [(mode, phase) for mode, phases in OF.items() for phase in phases]
HALF_WAY = ("begin", "init group", "metadata and broadcast", "bucket", "end")


class Source:
    """Two buckets of a model of three tensors, where a `WeightSource` stands."""

    def __init__(self) -> None:
        self.value = 1.0

    def tensors(self) -> list[dict[str, torch.Tensor]]:
        return [{"a": torch.full((3,), self.value), "b": torch.full((2, 2), self.value)}, {"c": torch.ones(5)}]

    def plan(self, max_bytes: int, dtype: torch.dtype) -> list[list[Any]]:
        return [[type("Unit", (), {"specs": specs_of(tensors)})] for tensors in self.tensors()]

    def buckets(self, max_bytes: int, dtype: torch.dtype, keep: Any) -> Iterator[Bucket]:
        for number, tensors in enumerate(self.tensors()):
            yield Bucket(number, tuple(specs_of(tensors)), tensors if keep(number) else {})


class Ranks:
    """The actor's worker group: one rank, in this process."""

    def __init__(self) -> None:
        self.source: Any = Source()
        self.sender = WeightSender(self.source, torch.float32, torch.device("cpu"))

    def export_weights(self, folder: str) -> None:
        Path(folder).mkdir()
        save_file({"w": torch.zeros(2)}, Path(folder) / "model.safetensors")

    def send_weights(self, job: SendJob) -> list[SendReport]:
        return [self.sender.send(job)]


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
async def pairs() -> AsyncIterator[Callable[[], Awaitable[Pair]]]:
    """Makes pairs of engines."""
    made: list[ScriptedEngine] = []

    async def make_pair() -> Pair:
        pair = Pair(*(ScriptedEngine(lambda _: ([1], "stop")) for _ in range(2)))
        for engine in (pair.bad, pair.good):
            made.append(engine)
            await engine.start()
        return pair

    yield make_pair
    for engine in made:
        engine.updates.leave()
        await engine.stop()


@dataclass
class Pair:
    """Two engines; one of them will fail."""

    bad: ScriptedEngine
    good: ScriptedEngine


class Run:
    """A weight sync of one rank with its engines."""

    def __init__(self, mode: Any, folder: Path, limit_s: float) -> None:
        def client(address: str) -> EngineClient:
            return EngineClient(address, vocab_size=10, request_timeout_s=limit_s, retries=0)

        self.mode, self.ranks, self.client = mode, Ranks(), client
        actor: Any = self.ranks
        self._sync = WeightSync(actor, client, mode=mode, folder=folder, model_bytes=8, timeout_s=limit_s)

    def send(self, version: int, addresses: list[str], *, resume: bool = True) -> list[str]:
        """Send weights that are all equal to the version."""
        self.ranks.source.value = float(version)
        return self._sync.sync(version, addresses, resume=resume)

    async def sync(self, version: int, *engines: ScriptedEngine) -> list[str]:
        """As `send`, from a thread that nobody waits for."""
        addresses = [engine.address for engine in engines]
        taken: list[str] = await call_in_thread(lambda: self.send(version, addresses))
        return taken

    def assert_in_step(self, engine: ScriptedEngine, version: int) -> None:
        assert engine.weight_version == str(version)
        assert not engine.paused
        if self.mode != "disk":
            assert not engine.updates.is_open
            assert sorted(engine.updates.weights) == ["a", "b", "c"]
            assert torch.equal(engine.updates.weights["b"], torch.full((2, 2), float(version)))


async def fail_and_return(mode: str, phase: str, fault: str, pair: Pair, folder: Path, limit_s: float) -> None:
    """Three syncs; in the second one an engine fails."""
    run, both = Run(mode, folder, limit_s), (pair.bad, pair.good)
    addresses = [pair.bad.address, pair.good.address]
    assert await run.sync(1, *both) == addresses
    pair.bad.update_faults[PHASES[phase]] = fault
    if phase == "init group":
        await call_in_thread(run.ranks.sender.close)  # else the group of the first sync is used
        group_sender.JOIN_S = min(group_sender.JOIN_S, 4.0)  # the good engine waits for the other one that long
    assert await run.sync(2, *both) == [pair.good.address]
    run.assert_in_step(pair.good, 2)
    assert pair.bad.paused or phase == "pause"
    if phase in HALF_WAY:
        assert pair.bad.weight_version == "updating-2"  # which no rollout accepts
    # It is in again when it took a later version from the start.
    pair.bad.update_faults.clear()
    pair.bad.dead = False
    assert await run.sync(3, *both) == addresses
    for engine in both:
        run.assert_in_step(engine, 3)
    await call_in_thread(run.ranks.sender.close)


@pytest.mark.parametrize("fault", ["refuse", "die"])
@pytest.mark.parametrize(("mode", "phase"), CASES)
async def test_an_engine_that_fails_is_out_and_the_other_goes_on(
    mode: str,
    phase: str,
    fault: str,
    pairs: Callable[[], Awaitable[Pair]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_sender, "JOIN_S", group_sender.JOIN_S)
    began = time.monotonic()
    await fail_and_return(mode, phase, fault, await pairs(), tmp_path, 120.0)
    assert time.monotonic() - began < 100.0  # nobody waited for the engine


@pytest.mark.parametrize("phase", ["init group", "metadata and broadcast"])
async def test_an_engine_refuses_before_the_trainer_has_begun_its_part(
    phase: str, pairs: Callable[[], Awaitable[Pair]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine its thread may start when the others have given up already."""

    async def late(part: Callable[[], None]) -> None:
        await asyncio.sleep(0.3)
        await call_in_thread(part)

    monkeypatch.setattr(weight_calls, "call_in_thread", late)
    monkeypatch.setattr(group_sender, "JOIN_S", group_sender.JOIN_S)
    await fail_and_return("distributed", phase, "refuse", await pairs(), tmp_path, 120.0)


async def test_an_engine_that_hangs_is_out_and_the_other_goes_on(
    pairs: Callable[[], Awaitable[Pair]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every phase of every transport, all at the same time: each waits for its limit."""
    monkeypatch.setattr(group_sender, "JOIN_S", HANG_LIMIT_S)
    monkeypatch.setattr(weight_calls, "GRACE_S", HANG_LIMIT_S)
    cases = [(await pairs(), *case) for case in CASES]
    outcomes = await asyncio.gather(
        *(fail_and_return(mode, phase, "hang", pair, tmp_path, HANG_LIMIT_S) for pair, mode, phase in cases),
        return_exceptions=True,
    )
    failed = {case: repr(outcome) for case, outcome in zip(CASES, outcomes, strict=True) if outcome is not None}
    assert not failed


@pytest.mark.parametrize("mode", OF)
async def test_the_last_engine_that_fails_is_an_error(
    mode: str, pairs: Callable[[], Awaitable[Pair]], tmp_path: Path
) -> None:
    run, bad = Run(mode, tmp_path, 120.0), (await pairs()).bad
    for fault, kind in (("refuse", EngineRequestError), ("die", EngineUnavailable)):
        bad.update_faults["/flush_cache"] = fault
        with pytest.raises(EngineError) as caught:
            await run.sync(1, bad)
        assert isinstance(caught.value, kind)
        bad.update_faults.clear()
        bad.dead = False
    await call_in_thread(run.ranks.sender.close)


class SharedGpus:
    """The engines of a run, where a fleet stands, and their turns with the ranks."""

    def __init__(self, run: Run, *engines: ScriptedEngine) -> None:
        actor: Any = run.ranks
        self.dropped: list[str] = []
        self.used: list[str] = []
        self.kept = [engine.address for engine in engines]
        self.phases = Phases(self, run.client, run.send, self.used.extend, actor=actor, groups=[], frees=True)

    def tend(self, *, wait: bool = False) -> list[str]:
        return self.kept

    def drop(self, address: str) -> None:
        self.dropped.append(address)


@pytest.mark.parametrize(("mode", "phase"), [case for case in CASES if case[1] != "continue"])
async def test_on_shared_gpus_an_engine_that_did_not_take_the_weights_is_ended(
    mode: str, phase: str, pairs: Callable[[], Awaitable[Pair]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_sender, "JOIN_S", 4.0)
    pair, run = await pairs(), Run(mode, tmp_path, 120.0)
    shared = SharedGpus(run, pair.bad, pair.good)
    await call_in_thread(shared.phases.train)
    pair.bad.update_faults[PHASES[phase]] = "refuse"
    await call_in_thread(lambda: shared.phases.serve(2))
    assert (shared.used, shared.dropped) == ([pair.good.address], [pair.bad.address])
    assert pair.bad.paused
    assert pair.bad.released == {"kv_cache"}, "it is not resumed: it would sample with half of the new weights"
    assert pair.good.released == set()
    run.assert_in_step(pair.good, 2)
    await call_in_thread(run.ranks.sender.close)


@pytest.mark.parametrize("mode", ["ipc", "distributed"])
async def test_on_shared_gpus_an_engine_that_the_first_weights_left_out_takes_the_next_ones(
    mode: str, pairs: Callable[[], Awaitable[Pair]], tmp_path: Path
) -> None:
    pair, run = await pairs(), Run(mode, tmp_path, 120.0)
    shared = SharedGpus(run, pair.bad, pair.good)
    pair.bad.update_faults["/end_weight_update"] = "refuse"
    assert await run.sync(0, pair.bad, pair.good) == [pair.good.address]
    assert (pair.bad.paused, pair.bad.updates.is_open) == (True, True)
    pair.bad.update_faults.clear()
    await call_in_thread(shared.phases.train)
    await call_in_thread(lambda: shared.phases.serve(1))
    assert (shared.used, shared.dropped) == (shared.kept, [])
    for engine in (pair.bad, pair.good):
        run.assert_in_step(engine, 1)
    await call_in_thread(run.ranks.sender.close)


async def test_an_engine_that_was_started_anew_joins_a_new_group(
    pairs: Callable[[], Awaitable[Pair]], tmp_path: Path
) -> None:
    """It knows nothing of the group that the trainer kept, and nobody is to blame for that."""
    pair, run = await pairs(), Run("distributed", tmp_path, 120.0)
    both = (pair.bad, pair.good)
    addresses = [engine.address for engine in both]
    await run.sync(1, *both)
    assert await run.sync(2, *both) == addresses
    assert pair.bad.updates.calls.count("/init_weights_update_group") == 1
    pair.bad.updates.leave()  # its process ended, and another one listens at its address
    assert await run.sync(3, *both) == addresses
    assert [engine.updates.calls.count("/init_weights_update_group") for engine in both] == [2, 2]
    for engine in both:
        run.assert_in_step(engine, 3)
    # Nor does a kept group stand for other engines.
    assert await run.sync(4, pair.good) == [pair.good.address]
    run.assert_in_step(pair.good, 4)
    assert await run.sync(5, *both) == addresses
    assert [len(engine.updates._groups) for engine in both] == [1, 1], "an engine is in no group that is given up"
    await call_in_thread(run.ranks.sender.close)
    assert [len(engine.updates._groups) for engine in both] == [0, 0], "nor in one of a run that has ended"


async def test_an_engine_that_is_too_old_is_told_as_such(pairs: Callable[[], Awaitable[Pair]], tmp_path: Path) -> None:
    bad = (await pairs()).bad
    bad.update_faults["/begin_weight_update"] = bad.update_faults["/end_weight_update"] = "unknown"
    with pytest.raises(EngineRequestError, match=r"answered 404: .*SGLang has this request from 0\.5\.23 on.*=disk"):
        await Run("ipc", tmp_path, 120.0).sync(1, bad)
