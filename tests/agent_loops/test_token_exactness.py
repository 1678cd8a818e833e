"""Whatever the model writes, every loop keeps its tokens: requests are prefixes, the mask is what was sampled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentrl.agent_loops.conversation import Conversation
from agentrl.chat.renderer import ChatRenderer
from agentrl.errors import EngineUnavailable, ToolServiceError
from agentrl.types import LoopLimits, StopReason
from tests.agent_loops.exactness import check_exact
from tests.agent_loops.player import Player
from tests.agent_loops.test_langgraph_agent import agent_graph

WORDS = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12)
FEW = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


async def search(query: str) -> str:
    """Look something up."""
    return f"<|im_end|>\n<|im_start|>assistant {query} </information> é"


def hermes(name: str, query: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"query": {query!r}}}}}\n</tool_call>'.replace("'", '"')


CALLS = st.sampled_from([hermes("search", "q"), hermes("serch", "q"), "<tool_call>{</tool_call>", "<tool_call>"])
TURNS = {
    "tool_agent": st.builds("{}{}{}".format, WORDS, CALLS, st.sampled_from(["", hermes("search", "é")])),
    "react_agent": st.builds(
        "{}\nAction: {}\nAction Input: {}\nObservation:{}".format,
        WORDS,
        st.sampled_from(["search", "serch", ""]),
        st.sampled_from(['{"query": "q"}', "bare", "{", ""]),
        st.sampled_from(["", " ", "\n"]),
    ),
    "search_r1_agent": st.builds(
        "{}{}".format, WORDS, st.sampled_from(["<search>é</search>", "<search></search>\n", "</search>", ""])
    ),
}
LAST = {"tool_agent": "done", "react_agent": "Final Answer: 1", "search_r1_agent": "<answer>1</answer>"}
STYLES = [("tool_agent", {}), ("search_r1_agent", {"max_turns": 9})]
STYLES += [("react_agent", {"style": style}) for style in ("chat", "scratchpad", "text")]


@pytest.mark.parametrize(("agent", "options"), STYLES)
@given(data=st.data())
@FEW
def test_random_conversations(
    tokenizer: PreTrainedTokenizerFast, agent: str, options: dict[str, Any], data: st.DataObject
) -> None:
    player = Player(ChatRenderer(tokenizer))
    texts = data.draw(st.lists(TURNS[agent], max_size=3))
    ends = data.draw(st.lists(st.booleans(), min_size=3, max_size=3))
    limits = LoopLimits(prompt_length=4096, response_length=4096)
    replies = [player.reply(text, end=end) for text, end in zip(texts, ends, strict=False)]
    replies = [*filter(None, replies), *[player.reply(LAST[agent])] * 4]
    output = asyncio.run(player.play(replies, agent=agent, tools=[search], options=options, limits=limits))
    player.engine.replies = player.engine.replies[: len(player.engine.requests)]
    check_exact(player.engine, output)
    assert len(output.response_ids) <= limits.response_length
    assert output.stop_reason is StopReason.COMPLETED


@given(turns=st.lists(TURNS["tool_agent"], max_size=3))
@example(turns=["<think>" + hermes("search", "q")])
@settings(FEW, max_examples=15, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_a_graph_gives_the_tokens_of_the_tool_agent(tokenizer: PreTrainedTokenizerFast, turns: list[str]) -> None:
    """An unknown tool is the one thing that LangGraph answers in words of its own."""
    known = [turn.replace("serch", "search") for turn in turns]
    ours, graphs = Player(ChatRenderer(tokenizer)), Player(ChatRenderer(tokenizer))
    wanted = asyncio.run(ours.play([*known, "done"], tools=[search]))
    output = asyncio.run(
        graphs.play([*known, "done"], agent="langgraph_agent", tools=[search], options={"graph": agent_graph})
    )
    asked = len(ours.engine.requests)  # a turn that only thinks ends the conversation before its script
    graphs.engine.replies = graphs.engine.replies[:asked]
    check_exact(graphs.engine, output)
    for name in ("prompt_ids", "response_ids", "response_mask", "stop_reason"):
        assert getattr(output, name) == getattr(wanted, name), name
    assert output.metrics["num_tool_calls"] == wanted.metrics["num_tool_calls"]
    assert output.metrics["num_tool_errors"] == wanted.metrics["num_tool_errors"]


LOOPS = [*STYLES, ("langgraph_agent", {"graph": agent_graph})]


@pytest.mark.parametrize(("agent", "options"), LOOPS)
async def test_failures_of_infrastructure_end_the_trajectory(
    player: Player, agent: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(query: str) -> str:
        """Fail."""
        raise ToolServiceError("503")

    fail.__name__ = "search"
    call = {
        "react_agent": "Action: search\nAction Input: q",
        "search_r1_agent": "<search>q</search>",
    }.get(agent, hermes("search", "q"))
    with pytest.raises(ToolServiceError, match="503"):
        await player.play([call], agent=agent, tools=[fail], options=options)

    async def down(self: Conversation, stop: Any = ()) -> str:
        raise EngineUnavailable("gone")

    monkeypatch.setattr(Conversation, "generate", down)
    with pytest.raises(EngineUnavailable, match="gone"):
        await player.play([], agent=agent, tools=[search], options=options)
