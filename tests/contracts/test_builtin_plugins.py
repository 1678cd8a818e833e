"""agentrl's own plug-ins pass the contract tests, and broken ones do not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from agentrl.agent_loops.single_turn_agent import SingleTurnAgent
from agentrl.errors import EngineError
from agentrl.interfaces import BaseTool
from agentrl.plugins import LoopSpec, ToolSpec, load_agent_loops, load_interactions, load_tools
from agentrl.testing.contracts import check_agent_loop, check_interaction, check_tool
from agentrl.types import AgentLoopOutput, JsonDict, StopReason, ToolResponse


@pytest.fixture
async def retrieval() -> AsyncIterator[str]:
    async def retrieve(request: web.Request) -> web.Response:
        queries = (await request.json())["queries"]
        return web.json_response({"result": [[{"document": {"contents": '"T"\nB'}}] for _ in queries]})

    app = web.Application()
    app.router.add_post("/retrieve", retrieve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
    await runner.cleanup()


async def test_builtin_tools(retrieval: str) -> None:
    calculator, grader = load_tools("tools/gsm8k.yaml")
    await check_tool(calculator, {"expression": "6 * 7"})
    await check_tool(grader, {"answer": "42"}, create_kwargs={"ground_truth": "42"})
    (search,) = load_tools("tools/search.yaml")
    config = {**search.config, "retrieval_service_url": retrieval}
    await check_tool(ToolSpec(search.name, search.cls, config, search.schema), {"query_list": ["q"]})


async def test_builtin_interaction() -> None:
    spec = load_interactions("interactions/gsm8k.yaml")["gsm8k"]
    messages = [{"role": "user", "content": "6 * 7?"}, {"role": "assistant", "content": "#### 42"}]
    response = await check_interaction(spec, {"query": "6 * 7?", "ground_truth": "42"}, messages)
    assert response.should_terminate


@pytest.mark.parametrize("name", ["single_turn_agent", "tool_agent", "react_agent"])
async def test_builtin_agent_loops(name: str) -> None:
    output = await check_agent_loop(load_agent_loops()[name], "Final Answer: 42")
    assert output.stop_reason is StopReason.COMPLETED


class Leaky(BaseTool):
    calls = 0

    @classmethod
    def default_schema(cls) -> JsonDict:
        return {"type": "function", "function": {"name": "leaky", "description": "Leaks.", "parameters": {}}}

    async def execute(self, arguments: JsonDict, **execute_kwargs: Any) -> ToolResponse:
        Leaky.calls += 1
        return ToolResponse(text="", reward=float(Leaky.calls))


async def test_state_that_leaks_is_found() -> None:
    with pytest.raises(AssertionError, match="state leaks"):
        await check_tool(ToolSpec("leaky", Leaky, {}, Leaky.default_schema()), {})


class Hiding(SingleTurnAgent):
    async def run(self, sampling_params: JsonDict, **row_fields: Any) -> AgentLoopOutput:
        try:
            return await super().run(sampling_params, **row_fields)
        except EngineError:
            return AgentLoopOutput([1], [], [], [], 1, StopReason.COMPLETED)


class Training(SingleTurnAgent):
    async def run(self, sampling_params: JsonDict, **row_fields: Any) -> AgentLoopOutput:
        output = await super().run(sampling_params, **row_fields)
        output.response_ids = [*output.response_ids, 5]
        output.response_mask = [*output.response_mask, 0]
        output.response_logprobs = [*output.response_logprobs, 0.0]
        output.weight_versions = [*output.weight_versions, 0]
        return output


@pytest.mark.parametrize(
    ("loop", "message"), [(Hiding, "hid a failure"), (Training, r"the last token must be a sampled one")]
)
async def test_broken_loops_are_found(loop: type[SingleTurnAgent], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        await check_agent_loop(LoopSpec("broken", loop))
