"""The engine clients against an engine that fails on command, in SGLang's words and in vLLM's."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import EngineError, EngineRequestError, EngineUnavailable, WeightVersionError
from agentrl.inference.client import EngineClient
from agentrl.inference.protocol import parse_generation, parse_weight_version
from agentrl.inference.vllm_client import VLLMClient
from agentrl.testing.scripted_engine import ScriptedEngine

PARAMS = {"max_new_tokens": 8, "temperature": 1.0}


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(lambda payload: ([5, 6, 7], "stop"))
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture(params=[EngineClient, VLLMClient])
async def client(engine: ScriptedEngine, request: pytest.FixtureRequest) -> AsyncIterator[EngineClient]:
    client: EngineClient = request.param(engine.address, vocab_size=100, request_timeout_s=10, retries=2)
    yield client
    await client.close()


async def test_generation(engine: ScriptedEngine, client: EngineClient) -> None:
    output = await client.generate([1, 2, 3], PARAMS, rid="a")
    assert output.token_ids == [5, 6, 7]
    assert output.log_probs == [-0.5, -0.5, -0.5]
    assert output.weight_versions == [0, 0, 0]
    assert (output.finish_reason, output.prompt_tokens) == ("stop", 3)
    (request,) = engine.requests
    assert request.pop("return_logprob", True)
    assert request == {"rid": "a", "input_ids": [1, 2, 3], "sampling_params": PARAMS}


@pytest.mark.parametrize("ids", [[100], [1, -1], [], [1, 10**9, 2]])
async def test_ids_outside_the_vocabulary_never_reach_the_engine(
    engine: ScriptedEngine, client: EngineClient, ids: list[int]
) -> None:
    with pytest.raises(EngineRequestError):
        await client.generate(ids, PARAMS)
    assert engine.requests == []


async def test_stop_ids_outside_the_vocabulary_never_reach_the_engine(
    engine: ScriptedEngine, client: EngineClient
) -> None:
    with pytest.raises(EngineRequestError, match="id 100 at position 1 of stop_token_ids"):
        await client.generate([1], {**PARAMS, "stop_token_ids": [1, 100]})
    assert engine.requests == []


@pytest.mark.parametrize("fault", ["500", "503", "429", "drop", "cut"])
async def test_a_lost_answer_is_drawn_again_under_a_new_id(
    engine: ScriptedEngine, client: EngineClient, fault: str
) -> None:
    engine.faults.append(fault)
    output = await client.generate([1], PARAMS, rid="a")
    assert output.token_ids == [5, 6, 7]
    assert [request["rid"] for request in engine.requests] == ["a", "2.a"]
    await client.close()
    assert engine.aborted == (["a"] if fault in ("drop", "cut") else [])


async def test_retries_end(engine: ScriptedEngine, client: EngineClient) -> None:
    engine.faults.extend(["500"] * 3)
    with pytest.raises(EngineUnavailable, match="500: as told"):
        await client.generate([1], PARAMS)
    assert len(engine.requests) == 3


async def test_a_refused_request_is_not_tried_again(engine: ScriptedEngine, client: EngineClient) -> None:
    engine.faults.append("400")
    with pytest.raises(EngineRequestError, match="400: as told"):
        await client.generate([1], PARAMS)
    assert len(engine.requests) == 1


async def test_a_cancelled_generation_is_aborted(engine: ScriptedEngine, client: EngineClient) -> None:
    engine.faults.append("hang")
    task = asyncio.create_task(client.generate([1], PARAMS, rid="a"))
    while not engine.requests:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await client.close()
    assert engine.aborted == ["a"]


async def test_no_engine_there() -> None:
    client = EngineClient("http://127.0.0.1:9", vocab_size=100, retries=1)
    with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:9"):
        await client.generate([1], PARAMS)
    assert not await client.health()
    await client.close()


async def test_connections_are_reused(engine: ScriptedEngine, client: EngineClient) -> None:
    await client.generate([1], PARAMS)
    session = client._open_session()
    for _ in range(5):
        await client.generate([1], PARAMS)
    assert session is client._open_session()
    assert sum(len(pool) for pool in session.connector._conns.values()) == 1


async def test_a_waiting_request_holds_little_more_than_its_body(engine: ScriptedEngine, client: EngineClient) -> None:
    count, ids = 16, [10] * 16_000
    engine._keep_requests = False
    engine.faults.extend(["hang"] * count)
    await client.health()
    tracemalloc.start()
    try:
        waiting = [asyncio.create_task(client.generate(ids, PARAMS)) for _ in range(count)]
        while engine.faults:
            await asyncio.sleep(0.01)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert held / count < 500_000, "the body has 48 kB, and the engine in this process reads it into objects"


async def test_control_calls(engine: ScriptedEngine, client: EngineClient, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert await client.health()
    assert await client.weight_version() == 0
    await client.update_weights_from_disk(str(tmp_path), 3)
    assert engine.weight_updates == [str(tmp_path)]
    assert await client.weight_version() == 3
    assert (await client.generate([1], PARAMS)).weight_versions == [3, 3, 3]
    await client.pause("abort")
    await client.resume()
    await client.flush_cache()
    await client.abort("x")
    await client.abort()
    assert engine.aborted == ["x", "all"]
    with pytest.raises(EngineRequestError, match=r"no such folder|no model"):
        await client.update_weights_from_disk("missing", 4)
    engine.healthy = False
    assert not await client.health()


def answer(**meta: Any) -> dict[str, Any]:
    base = {
        "finish_reason": {"type": "stop", "matched": 7},
        "weight_version": "2",
        "output_token_logprobs": [[-1.0, 5, "a"], [-2.0, 7, None]],
    }
    return {"output_ids": [5, 7], "meta_info": {**base, **meta}}


def test_answers_of_real_servers() -> None:
    output = parse_generation(answer(), 8)
    assert (output.token_ids, output.weight_versions, output.matched) == ([5, 7], [2, 2], 7)
    assert parse_generation([answer()], 8).token_ids == [5, 7]
    spans = [{"version": "1", "start": 0, "end": 1}, {"version": "2", "start": 1, "end": 2}]
    assert parse_generation(answer(weight_versions=spans), 8).weight_versions == [1, 2]
    assert parse_generation(answer(weight_version="default"), 8).weight_versions == [-1, -1]
    without_ids = answer()
    del without_ids["output_ids"]
    assert parse_generation(without_ids, 8).token_ids == [5, 7]
    empty = {"output_ids": [], "meta_info": {"finish_reason": {"type": "abort", "message": "x"}}}
    assert parse_generation(empty, 8).finish_reason == "abort"
    assert parse_generation(answer(finish_reason=None), 8).finish_reason == "abort"
    assert parse_generation(answer(finish_reason=None), 2).finish_reason == "length"
    assert parse_generation(answer(finish_reason="length"), 8).finish_reason == "length"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"error": "x"}, "not one generation"),
        ([answer(), answer()], "not one generation"),
        ({**answer(), "output_ids": [5]}, "belong to other ids"),
        ({**answer(), "output_ids": [5, 8]}, "belong to other ids"),
        (answer(output_token_logprobs=None), "belong to other ids"),
        (answer(output_token_logprobs=[[None, 5, None], [-1.0, 7, None]]), "without a log-prob"),
        (answer(weight_versions=[{"version": "1", "start": 0, "end": 1}]), "cover 1 of 2"),
    ],
)
def test_answers_that_cannot_be_trained_on(body: Any, says: str) -> None:
    with pytest.raises(EngineError, match=says):
        parse_generation(body, 8)


def test_weight_versions_are_numbers() -> None:
    assert [parse_weight_version(v) for v in (None, "default", "0", "3", 4)] == [-1, -1, 0, 3, 4]
    with pytest.raises(WeightVersionError, match="main-2"):
        parse_weight_version("main-2")
