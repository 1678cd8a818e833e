"""LangGraph graphs, unchanged, on agentrl's engine: same tokens, same limits, same failures."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent

from agentrl.agent_loops.conversation import Conversation
from agentrl.agent_loops.langgraph_agent import LangGraphAgent
from agentrl.errors import PluginError, ToolServiceError
from agentrl.types import AgentLoopOutput, LoopLimits, StopReason
from tests.agent_loops.exactness import check_exact
from tests.agent_loops.player import Player

CALL = '<tool_call>\n{"name": "lookup", "arguments": {"key": "k"}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "lookup", \n</tool_call>'


async def lookup(key: str) -> str:
    """Look a key up."""
    return f"value of {key}"


def agent_graph(model: Any, tools: list[Any]) -> Any:
    return create_agent(model, tools)


async def play(
    player: Player, *texts: Any, graph: Callable[..., Any] = agent_graph, tools: Any = (lookup,), **kwargs: Any
) -> AgentLoopOutput:
    options = {"graph": graph, **kwargs.pop("options", {})}
    output = await player.play(texts, agent="langgraph_agent", tools=tools, options=options, **kwargs)
    check_exact(player.engine, output)
    return output


def limits(**changes: Any) -> LoopLimits:
    return LoopLimits(**{"prompt_length": 4096, "response_length": 4096, **changes})


def answers(output: AgentLoopOutput) -> list[str]:
    return [message["content"] for message in output.extra_fields["messages"] if message["role"] == "tool"]


def chain(*nodes: Callable[..., Any]) -> Any:
    """A graph that runs these nodes one after the other."""
    builder = StateGraph(MessagesState)
    names = [f"node{i}" for i in range(len(nodes))]
    for name, node in zip(names, nodes, strict=True):
        builder.add_node(name, node)
    for before, after in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(before, after)
    return builder.compile()


def asks(model: Any, change: Callable[[list[Any]], list[Any]] = lambda messages: messages) -> Callable[..., Any]:
    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(change(state["messages"]))]}

    return node


async def test_the_older_prebuilt_agent(player: Player) -> None:
    def build(model: Any, tools: list[Any]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return create_react_agent(model, tools)

    output = await play(player, CALL, CALL * 2, "done", graph=build)
    assert output.stop_reason is StopReason.COMPLETED
    assert answers(output) == ["value of k"] * 3
    assert output.num_turns == 6


async def test_a_system_prompt_of_the_graphs(player: Player) -> None:
    async def build(model: Any, tools: list[Any]) -> Any:
        return create_agent(model, tools, system_prompt="Be brief.")

    output = await play(player, CALL, "done", graph=build)
    assert output.extra_fields["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "Be brief." in player.renderer.decode(output.prompt_ids)


async def test_mistakes_of_the_model_come_back_to_it(player: Player) -> None:
    wrong = '<tool_call>{"name": "lookup", "arguments": {"key": 1}}</tool_call>'
    output = await play(player, BROKEN, CALL + BROKEN, CALL.replace("lookup", "lokup"), wrong, "done")
    assert "not valid JSON" in answers(output)[0]
    assert answers(output)[1] == "value of k"
    assert "not valid JSON" in answers(output)[2]
    assert "lokup is not a valid tool" in answers(output)[3]
    assert ".key: 1 is not of type 'string'" in answers(output)[4]
    assert output.stop_reason is StopReason.COMPLETED
    assert output.metrics["num_tool_errors"] == 3


async def test_limits(player: Player) -> None:
    output = await play(player, CALL, CALL, limits=limits(max_assistant_turns=2))
    assert output.stop_reason is StopReason.MAX_TURNS
    assert output.extra_fields["num_tool_calls"] == 1
    output = await play(player, CALL * 2, CALL * 2, CALL, limits=limits(max_tool_calls=3))
    assert output.stop_reason is StopReason.MAX_TOOL_CALLS
    assert output.extra_fields["num_tool_calls"] == 3
    output = await play(player, CALL * 3, "done", limits=limits(max_parallel_calls=2))
    assert "at most 2 tool calls" in answers(output)[2]
    output = await play(player, CALL, limits=limits(stop_tools=("lookup",)))
    assert output.stop_reason is StopReason.STOP_TOOL
    assert output.extra_fields["stop_tool"]["response"] == "value of k"
    output = await play(player, CALL, limits=limits(response_length=len(CALL) + 10))
    assert output.stop_reason is StopReason.LENGTH
    output = await play(player, BROKEN, limits=limits(response_length=len(BROKEN) + 10))
    assert output.stop_reason is StopReason.LENGTH
    output = await play(player, BROKEN, limits=limits(max_assistant_turns=1))
    assert output.stop_reason is StopReason.MAX_TURNS
    output = await play(player, (CALL, "length"))
    assert output.stop_reason is StopReason.LENGTH
    output = await play(player, *[CALL] * 3, options={"recursion_limit": 5})
    assert output.stop_reason is StopReason.MAX_TURNS


async def test_an_end_that_the_graph_takes_for_an_error_is_one(player: Player) -> None:
    def build(model: Any, tools: list[Any]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return create_react_agent(model, ToolNode(tools, handle_tool_errors=True))

    output = await play(player, CALL, graph=build, limits=limits(stop_tools=("lookup",)))
    assert output.stop_reason is StopReason.STOP_TOOL


async def test_a_failure_that_the_graph_hides_is_not_forgotten(player: Player) -> None:
    async def broken() -> str:
        """Fail."""
        raise ToolServiceError("503")

    def build(model: Any, tools: list[Any]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return create_react_agent(model, ToolNode(tools, handle_tool_errors=True))

    def build_and_end(model: Any, tools: list[Any]) -> Any:
        return chain(asks(model.bind_tools(tools)), ToolNode(tools, handle_tool_errors=True))

    call = '<tool_call>{"name": "broken", "arguments": {}}</tool_call>'
    for graph in (build, build_and_end):
        with pytest.raises(ToolServiceError, match="503"):
            await play(player, call, "done", graph=graph, tools=[broken])


async def test_tools_of_the_graphs_own(player: Player) -> None:
    @tool
    def shout(text: str) -> str:
        """Say it louder."""
        return text.upper()

    def build(model: Any, tools: list[Any]) -> Any:
        return create_agent(model, [*tools, shout])

    call = '<tool_call>{"name": "shout", "arguments": {"text": "hi"}}</tool_call>'
    output = await play(player, CALL + call, call, "done", graph=build)
    assert answers(output) == ["value of k", "HI", "HI"]
    assert '"shout"' in player.renderer.decode(output.prompt_ids)


async def test_nodes_that_are_not_async(player: Player) -> None:
    def build(model: Any, tools: list[Any]) -> Any:
        bound = model.bind_tools(tools)

        def ask(state: MessagesState) -> dict[str, Any]:
            return {"messages": [bound.invoke(state["messages"], stop=["###"])]}

        def run(state: MessagesState) -> dict[str, Any]:
            (call,) = state["messages"][-1].tool_calls
            said = [tools[0].invoke(call)]
            assert tools[0].run({"key": "z"}) == "value of z"
            return {"messages": said}

        return chain(ask, run, ask)

    output = await play(player, CALL, "done", graph=build)
    assert player.engine.requests[0][1]["stop"] == ["###"]
    assert answers(output) == ["value of k"]

    def blocking(model: Any, tools: list[Any]) -> Any:
        async def ask(state: MessagesState) -> dict[str, Any]:
            return {"messages": [model.invoke(state["messages"])]}

        return chain(ask)

    with pytest.raises(PluginError, match="must await the model and tools"):
        await play(player, "done", graph=blocking)


REWRITES: dict[str, tuple[Callable[[Any, list[Any]], Any], str]] = {
    "trims": (lambda m, t: chain(asks(m), asks(m, lambda all_: all_[1:])), "may only append"),
    "asks again": (lambda m, t: chain(asks(m), asks(m, lambda all_: all_[:-1])), r"added \(nothing\)"),
    "answers itself": (lambda m, t: chain(asks(m), asks(m, lambda a: [*a, AIMessage("x")])), r"added \(assistant\)"),
    "shows an image": (
        lambda m, t: chain(asks(m, lambda all_: [HumanMessage([{"type": "image_url", "image_url": "x"}])])),
        "not text",
    ),
    "odd message": (lambda m, t: chain(asks(m, lambda all_: [ChatMessage("x", role="critic")])), "ChatMessage"),
    "other tools": (
        lambda m, t: chain(asks(m), asks(m.bind_tools(t), lambda a: [*a, HumanMessage("go on")])),
        "other tools than at first",
    ),
    "forces a call": (lambda m, t: chain(asks(m.bind_tools(t, tool_choice="any"))), "`tool_choice` is 'any'"),
    "samples its way": (lambda m, t: chain(asks(m.bind(temperature=0.1))), r"the graph gave \['temperature'\]"),
    "no model": (lambda m, t: chain(lambda state: {"messages": []}), "without calling its model"),
    "no graph": (lambda m, t: 5, "returned 5, wanted a compiled graph"),
    "tool first": (lambda m, t: chain(lambda state: t[0].invoke({"key": "k"})), "a tool before its model"),
}


@pytest.mark.parametrize("case", REWRITES)
async def test_what_cannot_be_trained_is_refused(player: Player, case: str) -> None:
    graph, message = REWRITES[case]
    with pytest.raises(PluginError, match=message):
        await play(player, "one", "two", graph=graph)


async def test_two_questions_at_a_time_are_refused(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = Conversation.generate

    async def slowly(self: Conversation, stop: Any = ()) -> str:
        await asyncio.sleep(0)
        return await generate(self, stop)

    monkeypatch.setattr(Conversation, "generate", slowly)

    def build(model: Any, tools: list[Any]) -> Any:
        async def both(state: MessagesState) -> dict[str, Any]:
            await asyncio.gather(model.ainvoke(state["messages"]), model.ainvoke(state["messages"]))
            return {}

        return chain(both)

    with pytest.raises(PluginError, match="twice at the same time"):
        await play(player, "one", "two", graph=build)


async def test_a_graph_may_ask_on_and_call_as_it_likes(player: Player) -> None:
    def build(model: Any, tools: list[Any]) -> Any:
        bound = model.bind_tools(tools)

        async def other_arguments(state: MessagesState) -> dict[str, Any]:
            (call,) = state["messages"][-1].tool_calls
            return {"messages": [await tools[0].ainvoke({**call, "args": {"key": "mine"}, "type": "tool_call"})]}

        return chain(asks(bound), other_arguments, asks(bound), asks(bound, lambda a: [*a, HumanMessage("Sure?")]))

    output = await play(player, CALL, "one", "two", graph=build)
    assert answers(output) == ["value of mine"]
    assert [m["role"] for m in output.extra_fields["messages"][-3:]] == ["assistant", "user", "assistant"]


async def test_earlier_turns_of_the_prompt(player: Player) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "lookup", "arguments": {"key": "k"}}}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "lookup", "tool_call_id": "a", "content": "value of k"},
        {"role": "assistant", "content": "k it is"},
        {"role": "user", "content": [{"type": "text", "text": "again"}]},
    ]
    output = await play(player, CALL, "done", messages=messages)
    messages[-1] = {"role": "user", "content": "again"}
    assert output.prompt_ids == (await player.play(["x"], tools=[lookup], messages=messages)).prompt_ids


async def test_a_deadline_leaves_nothing_behind(player: Player) -> None:
    async def hang() -> str:
        """Wait."""
        await asyncio.sleep(60)
        return ""

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await play(player, '<tool_call>{"name": "hang", "arguments": {}}</tool_call>', tools=[hang])
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_langgraph_is_an_extra(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    question = [{"role": "user", "content": "?"}]
    assert LangGraphAgent.render_prompt(player.renderer, question, []) == player.renderer.render_prompt(question)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PluginError, match=r"pip install 'agentrl\[langgraph\]'"):
        LangGraphAgent.render_prompt(player.renderer, question, [])
