"""The router with two engines: sticky trajectories, failover, weight versions."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from agentrl.errors import EngineRequestError, EngineTimeout, EngineUnavailable, WeightVersionError
from agentrl.inference import router as router_module
from agentrl.inference.client import EngineClient
from agentrl.inference.router import Router
from agentrl.testing.scripted_engine import ScriptedEngine

PARAMS = {"max_new_tokens": 8}


@pytest.fixture(autouse=True)
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "PROBE_INTERVAL_S", 0.05)


@pytest.fixture
async def engines() -> AsyncIterator[list[ScriptedEngine]]:
    engines = [ScriptedEngine(lambda payload, mark=mark: ([mark], "stop")) for mark in (1, 2)]
    for engine in engines:
        await engine.start()
    yield engines
    for engine in engines:
        await engine.stop()


@pytest.fixture
async def router(engines: list[ScriptedEngine]) -> AsyncIterator[Router]:
    router = Router([e.address for e in engines], vocab_size=100, request_timeout_s=5, retries=0)
    yield router
    await router.close()


async def generate(router: Router, trajectory: str) -> int:
    return (await router.generate(trajectory, [1], PARAMS)).token_ids[0]


async def until(condition: object) -> None:
    async with asyncio.timeout(5):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.02)


async def test_trajectories_stick_and_spread_evenly(router: Router, engines: list[ScriptedEngine]) -> None:
    homes = {f"t{i}": await generate(router, f"t{i}") for i in range(10)}
    assert Counter(homes.values()) == {1: 5, 2: 5}
    for _ in range(3):
        assert {t: await generate(router, t) for t in homes} == homes
    for trajectory, home in homes.items():
        if home == 1:
            router.release(trajectory)
    router.release("never seen")
    assert [router.in_flight(e.address) for e in engines] == [0, 5]
    assert [await generate(router, f"new{i}") for i in range(5)] == [1] * 5


async def test_a_dead_engine_is_taken_out_and_comes_back(router: Router, engines: list[ScriptedEngine]) -> None:
    homes = {f"t{i}": await generate(router, f"t{i}") for i in range(4)}
    await engines[0].stop()
    assert {await generate(router, t) for t in homes} == {2}
    assert list(router.out) == [engines[0].address]
    assert router.in_flight(engines[0].address) == 0
    await engines[0].start()
    await until(lambda: not router.out)
    assert await generate(router, "new") == 1


async def test_a_restarted_engine_with_old_weights_stays_out(router: Router, engines: list[ScriptedEngine]) -> None:
    await router.update_weights("folder", 7)
    await engines[0].stop()
    assert await generate(router, "t0") == 2
    engines[0].weight_version = "default"
    await engines[0].start()
    await until(
        lambda: (
            "serves weight version unknown (no run has set one); the run is at 7"
            in router.out.get(engines[0].address, "")
        )
    )
    assert await generate(router, "t1") == 2
    engines[0].weight_version = "7"
    await until(lambda: not router.out)


async def test_an_engine_whose_weights_change_behind_our_back_is_taken_out(
    router: Router, engines: list[ScriptedEngine]
) -> None:
    await router.update_weights("folder", 1)
    engines[0].weight_version = "9"
    assert await generate(router, "t0") == 2
    assert "version 9" in router.out[engines[0].address]
    with pytest.raises(WeightVersionError, match="serves weight version 9; the run is at 1"):
        await router.verify()


async def test_an_engine_that_says_one_version_and_samples_from_another(
    router: Router, engines: list[ScriptedEngine]
) -> None:
    await router.update_weights("folder", 1)
    for engine in engines:
        engine.answer_overrides = {"weight_version": "0"}
    with pytest.raises(EngineUnavailable, match="sampled by weight version 0; the run is at 1"):
        await generate(router, "t0")


async def test_a_request_that_breaks_does_not_take_healthy_engines_out(
    router: Router, engines: list[ScriptedEngine]
) -> None:
    engines[0].faults.append("500")
    with pytest.raises(EngineUnavailable, match="as told"):
        await generate(router, "t0")
    assert not router.out
    assert len(engines[1].requests) == 0
    assert await generate(router, "t0") == 1


async def test_a_refused_request_is_not_sent_elsewhere(router: Router, engines: list[ScriptedEngine]) -> None:
    engines[0].faults.append("400")
    with pytest.raises(EngineRequestError):
        await generate(router, "t0")
    assert len(engines[1].requests) == 0


async def test_a_hanging_engine_times_out_and_the_request_is_aborted(
    router: Router, engines: list[ScriptedEngine]
) -> None:
    engines[0].faults.append("hang")
    start = time.perf_counter()
    with pytest.raises(EngineTimeout, match=rf"{engines[0].address} gave no answer within 0\.3 s"):
        await router.generate("t0", [1], PARAMS, rid="a", timeout_s=0.3)
    assert time.perf_counter() - start < 10
    await until(lambda: engines[0].aborted == ["a"])
    assert len(engines[0].requests) == 1
    assert not engines[1].requests


async def test_retries_and_moves_stay_within_one_deadline(engines: list[ScriptedEngine]) -> None:
    """An engine that answers 500 for longer than the turn may take; each try alone is quick."""
    router = Router([e.address for e in engines], vocab_size=100, retries=1000)
    engines[0].faults.extend(["500"] * 1000)
    start = time.perf_counter()
    with pytest.raises(EngineTimeout, match=rf"{engines[0].address} gave no answer within 0\.5 s"):
        await router.generate("t0", [1], PARAMS, timeout_s=0.5)
    assert time.perf_counter() - start < 5
    await router.close()


async def test_a_hanging_engine_that_fails_its_health_check_is_taken_out(
    router: Router, engines: list[ScriptedEngine]
) -> None:
    engines[0].faults.append("hang")
    engines[0].healthy = False
    with pytest.raises(EngineTimeout):
        await router.generate("t0", [1], PARAMS, timeout_s=0.2)
    await until(lambda: engines[0].address in router.out)
    assert await generate(router, "t0") == 2


@pytest.fixture
async def patient(engines: list[ScriptedEngine], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Router]:
    """Requests may take ten minutes, but an engine that answers none is looked at ten times a second."""
    monkeypatch.setattr(router_module, "WATCH_INTERVAL_S", 0.1)
    router = Router([e.address for e in engines], vocab_size=100, request_timeout_s=600, retries=0)
    yield router
    await router.close()


async def test_requests_to_an_engine_that_hangs_move_long_before_their_deadline(
    patient: Router, engines: list[ScriptedEngine]
) -> None:
    engines[0].faults.extend(["hang"] * 3)
    engines[0].healthy = False
    async with asyncio.timeout(60):
        assert await asyncio.gather(*(generate(patient, f"t{i}") for i in range(6))) == [2] * 6
    assert "gives no answer to its health check" in patient.out[engines[0].address]


async def test_a_long_generation_of_an_engine_that_is_well_is_waited_for(
    patient: Router, engines: list[ScriptedEngine]
) -> None:
    engines[0].faults.append("hang")
    with pytest.raises(EngineTimeout):
        await patient.generate("t0", [1], PARAMS, timeout_s=0.5)
    assert not patient.out


async def test_all_engines_hang(patient: Router, engines: list[ScriptedEngine]) -> None:
    for engine in engines:
        engine.faults.extend(["hang"] * 10)
        engine.healthy = False
    async with asyncio.timeout(60):
        with pytest.raises(EngineUnavailable, match="no engine is left") as caught:
            await generate(patient, "t0")
    assert all(engine.address in str(caught.value) for engine in engines)


@pytest.mark.parametrize("call", ["pause", "resume", "update_weights_from_disk"])
async def test_an_engine_that_hangs_at_a_control_call_is_taken_out(
    router: Router, engines: list[ScriptedEngine], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    good = getattr(EngineClient, call)

    async def hang(client: EngineClient, *arguments: object) -> None:
        if client.address in hanging:
            raise EngineTimeout(f"{client.address} gave no answer within 5 s")
        await good(client, *arguments)

    async def ask() -> None:
        await (router.update_weights("folder", 1) if call.startswith("update") else getattr(router, call)())

    monkeypatch.setattr(EngineClient, call, hang)
    monkeypatch.setattr(router_module, "PROBE_INTERVAL_S", 60.0)
    hanging = [engines[0].address]
    await ask()
    assert list(router.out) == hanging
    hanging.append(engines[1].address)
    with pytest.raises(EngineUnavailable, match="gave no answer within 5 s"):
        await ask()


async def test_no_engine_left_names_each(router: Router, engines: list[ScriptedEngine]) -> None:
    for engine in engines:
        await engine.stop()
    with pytest.raises(EngineUnavailable, match="no engine is left") as caught:
        await generate(router, "t0")
    assert all(engine.address in str(caught.value) for engine in engines)


async def test_waiting_for_an_engine_to_come_back(engines: list[ScriptedEngine]) -> None:
    await engines[1].stop()
    router = Router([engines[0].address], vocab_size=100, retries=0, recovery_wait_s=5)
    await engines[0].stop()
    task = asyncio.create_task(generate(router, "t0"))
    await asyncio.sleep(0.2)
    assert not task.done()
    await engines[0].start()
    assert await task == 1
    await router.close()


async def test_update_goes_to_all_and_is_verified(router: Router, engines: list[ScriptedEngine]) -> None:
    await router.update_weights("folder", 1)
    assert [e.weight_updates for e in engines] == [["folder"], ["folder"]]
    await router.verify(1)
    engines[1].ignores_updates = True
    with pytest.raises(WeightVersionError, match="serves weight version 1 after an update to 2"):
        await router.update_weights("folder", 2)
    with pytest.raises(EngineRequestError, match="no such folder"):
        await router.update_weights("missing", 3)


async def test_update_goes_on_without_an_engine_that_is_gone(router: Router, engines: list[ScriptedEngine]) -> None:
    await engines[0].stop()
    await router.update_weights("folder", 1)
    assert list(router.out) == [engines[0].address]
    assert await generate(router, "t0") == 2
    await engines[1].stop()
    with pytest.raises(EngineUnavailable, match="no engine took the new weights"):
        await router.update_weights("folder", 2)


async def test_an_engine_that_is_named_again_need_not_wait_for_a_probe(
    router: Router, engines: list[ScriptedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_module, "PROBE_INTERVAL_S", 60.0)
    for engine in engines:
        await engine.stop()
    with pytest.raises(EngineUnavailable, match="no engine is left"):
        await generate(router, "t0")
    await engines[1].start()
    await router.set_addresses([engine.address for engine in engines])
    assert await generate(router, "t0") == 2


async def test_other_addresses(router: Router, engines: list[ScriptedEngine]) -> None:
    assert await generate(router, "t0") == 1
    await router.set_addresses([engines[1].address + "/"])
    assert router.addresses == [engines[1].address]
    assert await generate(router, "t0") == 2
    with pytest.raises(EngineUnavailable, match="at least one"):
        await router.set_addresses([])
