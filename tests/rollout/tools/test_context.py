"""Tools that see the conversation: every kind of tool, read-only, with a scratch of the trajectory's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rollout_helpers import ANSWER, MakeEngine, batch_of, sample

from agentrl.chat.renderer import ChatRenderer
from agentrl.config.root import RunConfig
from agentrl.interfaces import BaseTool
from agentrl.plugins import ToolSpec
from agentrl.plugins.adapt import schema_of
from agentrl.rollout.manager import AgentLoopManager
from agentrl.rollout.tools.context import ReadOnlyMessages, ToolContexts
from agentrl.rollout.tools.toolset import RowTools, ToolSet
from agentrl.testing.loops import WIDE
from agentrl.types import JsonDict, Sample, ToolCall, ToolContext, ToolResponse

MESSAGES = [{"role": "user", "content": "6 * 7?"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]}]
ROW = Sample(
    index=7,
    prompt=[],
    data_source="my/data",
    reward_model={"ground_truth": {"target": ["42"]}},
    extra_info={"level": {"hard": True}},
)


class Grader(BaseTool):
    @classmethod
    def default_schema(cls) -> JsonDict:
        return {"type": "function", "function": {"name": "grade", "parameters": {"type": "object"}}}

    async def execute(self, arguments: JsonDict, context: ToolContext, **execute_kwargs: Any) -> ToolResponse:
        calls = context.scratch["calls"] = context.scratch.get("calls", 0) + 1
        return ToolResponse(f"{context.turn} {calls} {context.ground_truth['target'][0]} {execute_kwargs}")


class VerlGrader:
    def __init__(self, config: JsonDict, tool_schema: Any) -> None:
        self.schema = tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> str:
        return "id"

    async def execute(self, instance_id: str, parameters: JsonDict, context: Any = None, **kwargs: Any) -> Any:
        context.scratch["calls"] = context.scratch.get("calls", 0) + 1
        return f"{context.data_source} {context.index} {context.scratch['calls']}", 0.0, {}


def look(word: str, context: ToolContext | None) -> str:
    """Look at the conversation.

    Args:
        word: a word.
        context: agentrl's.
    """
    assert context is not None
    context.scratch["calls"] = context.scratch.get("calls", 0) + 1
    return f"{word} {context.messages[-1]['role']} {len(context.messages)} {context.scratch['calls']}"


def quote(context: str) -> str:
    """Quote.

    Args:
        context: the model's own argument.
    """
    return context


def spec(plugin: Any, schema: JsonDict | None = None) -> ToolSpec:
    schema = schema or schema_of(plugin, {})
    return ToolSpec(schema["function"]["name"], plugin, {}, schema)


@pytest.fixture
def renderer(tokenizer: Any) -> ChatRenderer:
    return ChatRenderer(tokenizer)


async def test_every_kind_of_tool(renderer: ChatRenderer) -> None:
    verl = {"type": "function", "function": {"name": "verl", "parameters": {"type": "object"}}}
    specs = [spec(Grader), spec(VerlGrader, verl), spec(look), spec(quote)]
    tools = ToolSet(
        specs,
        limits=WIDE,
        renderer=renderer,
        row=RowTools(kwargs={"grade": {"execute_kwargs": {"strict": True}}}, contexts=ToolContexts(ROW)),
    )
    await tools.start()

    async def call(name: str, **arguments: Any) -> str:
        (response,) = await tools.execute([ToolCall(name, arguments)], messages=MESSAGES, turn=1)
        assert not response.is_error
        return response.text

    assert await call("grade") == "1 1 42 {'strict': True}"
    assert await call("verl") == "my/data 7 2"
    assert await call("look", word="x") == "x assistant 2 3"
    assert await call("quote", context="said") == "said"
    (refused,) = await tools.execute([ToolCall("look", {"word": "x", "context": "mine"})])
    assert refused.is_error
    await tools.release()


def test_the_schema_does_not_show_it() -> None:
    parameters = spec(look).schema["function"]["parameters"]
    assert list(parameters["properties"]) == parameters["required"] == ["word"]
    assert list(spec(quote).schema["function"]["parameters"]["properties"]) == ["context"]
    assert [spec(plugin).takes_context for plugin in (look, quote, Grader)] == [True, False, True]


async def test_a_row_may_give_its_own(renderer: ChatRenderer) -> None:
    def show(context: Any = None) -> str:
        """Show."""
        return str(context)

    kwargs = {"show": {"execute_kwargs": {"context": "the row's"}}}
    tools = ToolSet([spec(show)], limits=WIDE, renderer=renderer, row=RowTools(kwargs))
    await tools.start()
    (response,) = await tools.execute([ToolCall("show", {})])
    assert response.text == "the row's"


def test_messages_cannot_be_changed_and_rows_are_copies() -> None:
    messages: list[dict[str, Any]] = [dict(message) for message in MESSAGES]
    contexts = ToolContexts(ROW)
    context = contexts.make(messages, 1)
    assert isinstance(context.messages, ReadOnlyMessages)
    with pytest.raises(TypeError):
        context.messages[0]["content"] = "other"  # type: ignore[index]
    assert context.messages[1]["tool_calls"] == ({"id": "a"},)
    assert not hasattr(context.messages, "append")
    messages.append({"role": "tool", "content": "later"})
    assert len(context.messages) == len(list(context.messages)) == 2
    assert context.messages[-2:] == tuple(context.messages)
    assert repr(context.messages) == repr(MESSAGES)
    with pytest.raises(IndexError):
        context.messages[2]
    context.extra_info["level"]["hard"] = False
    context.ground_truth["target"].clear()
    assert ROW.extra_info["level"]["hard"]
    assert ROW.ground_truth == {"target": ["42"]}
    again = contexts.make(messages, 2)
    assert again.scratch is context.scratch
    assert ToolContexts(ROW).make(messages, 1).scratch is not context.scratch


def test_in_a_run(config: RunConfig, make_engine: MakeEngine, tmp_path: Any, play: Callable[..., Any]) -> None:
    """Two calls of one trajectory share a scratch; two trajectories do not."""
    (tmp_path / "mine.py").write_text(
        "def peek(context):\n"
        "    '''Peek.'''\n"
        "    seen = context.scratch.setdefault('turns', [])\n"
        "    seen.append(context.turn)\n"
        "    roles = ','.join(message['role'] for message in context.messages)\n"
        "    return f'{context.extra_info[\"index\"]} {context.index} {context.ground_truth} {seen} {roles}'\n"
    )
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: mine.py:peek}]")
    config.actor_rollout_ref.rollout.multi_turn.tool_config_path = str(tmp_path / "tools.yaml")
    call = '<tool_call>{"name": "peek", "arguments": {}}</tool_call>'
    manager = AgentLoopManager(config, [make_engine(play(call, call, ANSWER)).address])
    out = manager.generate_sequences(batch_of([sample(4), sample(5)]))
    manager.shutdown()
    for row, index in enumerate((4, 5)):
        said = [m["content"] for m in out.non_tensor_batch["messages"][row] if m["role"] == "tool"]
        assert said == [
            f"{index} {index} 7 [1] user,assistant",
            f"{index} {index} 7 [1, 2] user,assistant,tool,assistant",
        ]
