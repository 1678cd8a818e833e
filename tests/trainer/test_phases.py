"""Turns on shared GPUs: their order, and what happens to an engine that fails in one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentrl.errors import EngineTimeout, EngineUnavailable
from agentrl.inference.client import EngineClient
from agentrl.testing.scripted_engine import ScriptedEngine
from agentrl.trainer import phases as module
from agentrl.trainer.phases import Phases

RELEASED = ["pause", "release kv_cache weights"]
BACK = ["resume weights", "update 3", "resume kv_cache", "continue"]


@dataclass
class Ranks:
    """Stands where a worker group stands."""

    calls: list[str]

    def keep_on_device(self) -> None:
        self.calls.append("keep")

    def submit(self, method: str) -> Any:
        self.calls.append(method)
        return self

    def get(self) -> None:
        pass


@dataclass
class Fleet:
    """Two engines that can be ended and started again."""

    engines: list[ScriptedEngine]
    dropped: list[str] = field(default_factory=list)
    tended: int = 0
    used: list[str] = field(default_factory=list)

    def use(self, addresses: list[str]) -> None:
        self.used = addresses

    @property
    def kept(self) -> list[str]:
        return [engine.address for engine in self.engines]

    def tend(self, *, wait: bool = False) -> list[str]:
        assert wait, "on shared GPUs an engine can only start while the ranks are away"
        self.tended += 1
        return self.kept

    def drop(self, address: str) -> None:
        self.dropped.append(address)


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(module, "_REST_PAUSE_S", 0.0)
    engines = [ScriptedEngine(lambda payload: ([1], "stop")) for _ in range(2)]
    for engine in engines:
        await engine.start()
    yield Fleet(engines)
    for engine in engines:
        await engine.stop()


def client(address: str) -> EngineClient:
    return EngineClient(address, vocab_size=10, request_timeout_s=5, retries=0)


def make(fleet: Fleet, calls: list[str], send: Any = None, **options: Any) -> Phases:
    def send_all(version: int, addresses: list[str], *, resume: bool = True) -> list[str]:
        calls.append("send and continue" if resume else "send")
        for address in addresses:
            engine = next(engine for engine in fleet.engines if engine.address == address)
            engine.calls.append(f"update {version}")
        return addresses

    ranks: Any = Ranks(calls)
    whole = {"actor": ranks, "groups": [ranks], "frees": True, **options}
    return Phases(fleet, client, send or send_all, fleet.use, **whole)


async def test_the_order_of_a_step(fleet: Fleet) -> None:
    calls: list[str] = []
    phases = make(fleet, calls)
    assert not phases.serve(2), "it is the engines' turn already"
    for _ in range(2):  # passes over rollouts begin the ranks' turn, and updates do
        await asyncio.to_thread(phases.train)
    assert [engine.calls for engine in fleet.engines] == [RELEASED, RELEASED]
    phases.load()
    assert await asyncio.to_thread(phases.serve, 3)
    assert calls == ["keep", "send", "yield_device"]
    assert [engine.calls for engine in fleet.engines] == [RELEASED + BACK] * 2
    assert not await asyncio.to_thread(phases.serve, 3)
    assert (fleet.dropped, fleet.tended) == ([], 0)
    assert sorted(phases.take_seconds()) == ["timing_s/release_engines", "timing_s/resume_engines"]
    assert phases.take_seconds() == {}


async def test_adapters_leave_the_weights_where_they_are(fleet: Fleet) -> None:
    phases = make(fleet, [], keeps_weights=True)
    await asyncio.to_thread(phases.train)
    await asyncio.to_thread(phases.serve, 3)
    assert fleet.engines[0].calls == ["pause", "release kv_cache", "update 3", "resume kv_cache", "continue"]


async def test_engines_that_keep_their_memory_are_left_alone(fleet: Fleet) -> None:
    calls: list[str] = []
    phases = make(fleet, calls, frees=False)
    phases.train()
    phases.load()
    assert not phases.serve(3)
    assert (calls, fleet.engines[0].calls, phases.take_seconds()) == ([], [], {})


@pytest.mark.parametrize("call", ["pause", "flush_cache", "release_memory", "resume_memory", "resume"])
async def test_an_engine_that_fails_in_its_turn_is_started_again(
    call: str, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, sick = getattr(EngineClient, call), fleet.engines[1].address

    async def fail(self: EngineClient, *arguments: Any) -> Any:
        if self.address == sick:
            raise EngineTimeout(f"{self.address} gave no answer within 5 s")
        return await good(self, *arguments)

    monkeypatch.setattr(EngineClient, call, fail)
    phases = make(fleet, [])
    await asyncio.to_thread(phases.train)
    await asyncio.to_thread(phases.serve, 3)
    assert (fleet.dropped, fleet.tended, fleet.used) == ([sick], 1, [fleet.engines[0].address])
    assert fleet.engines[0].calls == RELEASED + BACK
    fleet.dropped.clear()
    monkeypatch.setattr(EngineClient, call, good)
    fleet.engines[1].released.clear()  # as a new process
    await asyncio.to_thread(phases.train)
    assert fleet.engines[1].released == {"kv_cache", "weights"}


async def test_where_all_engines_fail_the_new_ones_get_the_weights(fleet: Fleet) -> None:
    calls: list[str] = []
    phases = make(fleet, calls)
    await asyncio.to_thread(phases.train)
    for engine in fleet.engines:
        engine.released.clear()  # both were started again behind the run's back: SGLang ends when it is told to resume
    assert await asyncio.to_thread(phases.serve, 3)
    assert calls == ["yield_device", "send and continue"]
    assert (len(fleet.dropped), fleet.tended, fleet.used) == (2, 1, fleet.kept)


async def test_engines_that_do_not_take_the_weights_are_ended_and_not_resumed(fleet: Fleet) -> None:
    def refuse(version: int, addresses: list[str], *, resume: bool = True) -> list[str]:
        raise EngineUnavailable("no engine took the new weights")

    calls: list[str] = []
    phases = make(fleet, calls, refuse)
    await asyncio.to_thread(phases.train)
    with pytest.raises(EngineUnavailable, match="no engine took"):
        await asyncio.to_thread(phases.serve, 3)
    assert calls == ["yield_device"]
    assert [engine.calls for engine in fleet.engines] == [[*RELEASED, "resume weights"]] * 2
    assert sorted(fleet.dropped) == sorted(fleet.kept), "the run may revive them"
    assert not phases.serve(3), "it is the engines' turn"
