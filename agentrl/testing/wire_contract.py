"""What every engine that speaks SGLang's API must answer, as checks over plain HTTP; they follow `ENGINE_CONTRACTS`.

Each is what a real SGLang 0.5.23 does, and what the client of training relies on. Checks leave the engine as they found
it, but for its weight version.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx

from agentrl.testing.engine_contract import EngineCase, EngineCheck
from agentrl.types import JsonDict

TOOL: JsonDict = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
_SLACK_S = 300.0


def _http(case: EngineCase) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    return httpx.AsyncClient(base_url=case.client.address, trust_env=False, timeout=_SLACK_S)


def _request(ids: list[Any], count: int, **fields: Any) -> JsonDict:
    return {"input_ids": ids, "sampling_params": {"max_new_tokens": count, "ignore_eos": True}, **fields}


async def bodies_are_json(case: EngineCase) -> None:
    """Without a JSON content type, or without a body where one is wanted, a request is refused."""
    async with _http(case) as http:
        plain = await http.post("/generate", content=b'{"input_ids": [1]}', headers={"Content-Type": "text/plain"})
        statuses = [plain.status_code]
        for path in ("/pause_generation", "/continue_generation", "/generate"):
            statuses.append((await http.post(path)).status_code)
        assert statuses == [400] * 4
        assert (await http.get("/ready")).status_code == 200


async def ids_of_requests_differ(case: EngineCase) -> None:
    """Two requests of one call may not have the same id."""
    async with _http(case) as http:
        answer = await http.post("/generate", json=_request([[1], [2]], 1, rid=["same", "same"]))
    assert answer.status_code == 400
    assert "Duplicate request IDs" in answer.text


async def the_context_has_a_margin(case: EngineCase) -> None:
    """Of a context of C tokens, prompts get up to C - 7, and prompt and answer together C - 2."""
    async with _http(case) as http:
        most = (await http.get("/server_info")).json()["context_length"]
        assert most >= case.context + 8
        for length, status in ((most, 400), (most - 6, 400), (most - 7, 200)):
            answer = await http.post("/generate", json=_request([7] * length, 1 if length == most else 2))
            assert answer.status_code == status, length
        assert (await http.post("/generate", json=_request([7] * (most - 20), 21))).status_code == 400
        cut = (await http.post("/generate", json=_request([7] * (most - 20), 20))).json()
    assert len(cut["output_ids"]) == 18
    assert cut["meta_info"]["finish_reason"]["type"] == "length"


async def paused_is_not_ready(case: EngineCase) -> None:
    """`/ready` says that no request gets in; `/ping`, that the server is well all the same."""
    async with _http(case) as http:
        for mode in ("in_place", "retract", "abort"):
            assert (await http.post("/pause_generation", json={"mode": mode})).status_code == 200
            assert [(await http.get(path)).status_code for path in ("/ready", "/ping")] == [503, 200]
            assert await case.client.health()
            assert (await http.post("/continue_generation", json={})).status_code == 200
            assert (await http.get("/ready")).status_code == 200


async def the_cache_of_running_requests_stays(case: EngineCase) -> None:
    """Beside requests that are paused in place nothing is flushed, and weights that should be have not succeeded."""
    update = {"model_path": str(case.model), "weight_version": str(case.version + 1), "flush_cache": True}
    async with _http(case) as http:
        task = asyncio.create_task(case.generate([1, 2], case.long, temperature=1.0, ignore_eos=True))
        await case.until(lambda: _starts(case))
        assert (await http.post("/pause_generation", json={"mode": "in_place"})).status_code == 200
        assert not task.done(), "the model is too quick for this check"
        assert (await http.post("/flush_cache")).status_code == 400
        refused = await http.post("/update_weights_from_disk", json=update)
        assert (refused.status_code, refused.json()["success"]) == (400, False)
        assert await case.client.weight_version() == case.version
        assert (await http.post("/pause_generation", json={"mode": "retract"})).status_code == 200
        assert (await http.post("/flush_cache")).status_code == 200
        assert (await http.post("/update_weights_from_disk", json=update)).json()["success"]
        assert (await http.post("/continue_generation", json={})).status_code == 200
        output = await task
    case.version += 1
    assert output.weight_versions[-1] == case.version


async def an_update_waits_for_running_requests(case: EngineCase) -> None:
    """Unless the engine is paused, weights wait until what runs has ended; so the client pauses first."""
    update = {"model_path": str(case.model), "weight_version": str(case.version + 1), "flush_cache": True}
    async with _http(case) as http:
        task = asyncio.create_task(case.generate([1, 2], case.long, temperature=1.0, ignore_eos=True))
        await case.until(lambda: _starts(case))
        answer = await http.post("/update_weights_from_disk", json=update)
        assert answer.json()["success"]
        output = await task
    assert set(output.weight_versions) == {case.version}
    assert len(output.token_ids) == case.long
    case.version += 1


async def tools_reach_the_template(case: EngineCase) -> None:
    """A chat with tools has a longer prompt; an answer that calls none is text."""
    body = {"model": "x", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "temperature": 0}
    async with _http(case) as http:
        plain = (await http.post("/v1/chat/completions", json=body)).json()
        tools = (await http.post("/v1/chat/completions", json={**body, "tools": [TOOL]})).json()
    assert tools["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 20
    (choice,) = tools["choices"]
    assert choice["message"]["role"] == "assistant"
    assert not choice["message"].get("tool_calls")
    assert choice["finish_reason"] in ("length", "stop")


async def calls_of_tools_are_parsed(case: EngineCase) -> None:
    """`/parse_function_call` finds the calls of a text, in the format that the request names."""
    async with _http(case) as http:
        body = {"text": CALL, "tool_call_parser": "hermes", "tools": [TOOL]}
        found = (await http.post("/parse_function_call", json=body)).json()
        none = (await http.post("/parse_function_call", json={**body, "text": "1 + 2 = 3"})).json()
    assert found == {
        "normal_text": "",
        "calls": [{"tool_index": 0, "name": "add", "parameters": found["calls"][0]["parameters"]}],
    }
    assert httpx.Response(200, text=found["calls"][0]["parameters"]).json() == {"a": 1, "b": 2}
    assert none == {"normal_text": "1 + 2 = 3", "calls": []}


async def _starts(case: EngineCase) -> bool:
    return await case.running() > 0


WIRE_CONTRACTS: tuple[EngineCheck, ...] = (
    bodies_are_json,
    ids_of_requests_differ,
    the_context_has_a_margin,
    paused_is_not_ready,
    tools_reach_the_template,
    calls_of_tools_are_parsed,
    the_cache_of_running_requests_stays,
    an_update_waits_for_running_requests,
)
"""Every check, in an order in which each may follow the one before it."""
