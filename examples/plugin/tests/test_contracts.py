"""The plug-ins keep agentrl's contracts, and the loop does what it says."""

from __future__ import annotations

from pathlib import Path

from math_expression_plugin.score import compute_score

from agentrl.chat.renderer import ChatRenderer
from agentrl.chat.tool_parsers.hermes import HermesToolParser
from agentrl.plugins import load_agent_loops, load_interactions, load_tools
from agentrl.rollout.tools.toolset import ToolSet
from agentrl.testing.contracts import check_agent_loop, check_interaction, check_output, check_tool
from agentrl.testing.loops import WIDE, ScriptedReplies, make_context
from agentrl.testing.models import byte_tokenizer

CONFIGS = Path(__file__).parents[1] / "configs"


async def test_tool() -> None:
    (spec,) = load_tools(CONFIGS / "tools.yaml")
    await check_tool(spec, {"expression": "3 * (4 + 5.5)"})
    tool = spec.build()
    await tool.create()
    assert (await tool.execute({"expression": "1/3 + 1/6"})).text == "0.5"
    assert (await tool.execute({"expression": "__import__('os')"})).is_error
    assert (await tool.execute({"expression": "1/0"})).is_error


async def test_interaction() -> None:
    spec = load_interactions(CONFIGS / "interaction.yaml")["units_coach"]
    talk = [{"role": "user", "content": "How far?"}, {"role": "assistant", "content": "42 km"}]
    assert (await check_interaction(spec, {"unit": "km"}, talk)).should_terminate
    assert (await check_interaction(spec, {"unit": "m"}, talk)).content == "In m, please."


async def test_loop_keeps_the_contract() -> None:
    await check_agent_loop(load_agent_loops()["math_expression"])


async def test_loop_shows_the_value_of_an_expression() -> None:
    renderer = ChatRenderer(byte_tokenizer())
    end = list(renderer.turn_end_ids[-1:])
    turns = [[*renderer.encode_text(text), *end] for text in ("<expr>6*7</expr>", "It is 42")]
    tools = ToolSet(load_tools(CONFIGS / "tools.yaml"), limits=WIDE, renderer=renderer)
    await tools.start()
    context = make_context(renderer, ScriptedReplies(turns), tool_parser=HermesToolParser(), tools=tools)
    messages = [{"role": "user", "content": "6*7?"}]
    output = await load_agent_loops()["math_expression"].build(context).run({}, messages=messages)
    await tools.release()
    check_output(output)
    assert [message["content"] for message in output.extra_fields["messages"]][2] == "value: 42"
    assert sum(output.response_mask) == sum(map(len, turns))
    assert output.num_turns == 4


def test_score() -> None:
    assert compute_score("x", "<expr>6*7</expr>\nIt is 42", "42", {"num_tool_calls": 1})["score"] == 1.0
    assert compute_score("x", "It is 42", "42")["score"] == 0.9
    assert compute_score("x", "<expr>42</expr>", "42")["score"] == 0.0
