"""ReAct in text: actions, observations, the final answer and what counts as a mistake."""

from __future__ import annotations

import pytest

from agentrl.agent_loops.react_agent import ReactTurns
from agentrl.plugin_adapters import schema_of
from agentrl.tools.calculator import Calculator
from agentrl.types import LoopLimits, StopReason
from tests.agent_loops.player import Player

ACTION = 'Thought: multiply.\nAction: calculator\nAction Input: {"expression": "6 * 7"}\nObservation:'
FINAL = "Thought: I know the answer\nFinal Answer: 42"
TOOLS = [schema_of(Calculator, {})]


async def test_a_conversation(player: Player) -> None:
    output = await player.play(
        [player.reply(ACTION, end=False), FINAL], agent="react_agent", tools=[Calculator], stop=["###"]
    )
    assert player.engine.requests[0][1]["stop"] == ["###", "Observation:"]
    assert "Action Input:" in player.renderer.decode(output.prompt_ids)
    assert output.stop_reason is StopReason.COMPLETED
    assert [m["content"] for m in output.extra_fields["messages"] if m["role"] == "user"][1:] == ["Observation: 42"]
    first = len(player.reply(ACTION, end=False))
    assert output.response_mask[:first] == [1] * first
    assert output.response_ids[first] == player.renderer.turn_end_ids[-1]
    assert output.response_mask[first] == 0
    assert output.num_turns == 4


async def test_a_mistake_is_answered(player: Player) -> None:
    output = await player.play(["I think it is 42.", FINAL], agent="react_agent", tools=[Calculator])
    observation = output.extra_fields["messages"][-2]["content"]
    assert observation == "Observation: write either 'Action:' and 'Action Input:', or 'Final Answer:'"
    assert output.metrics["num_tool_errors"] == 1


async def test_turn_limit(player: Player) -> None:
    limits = LoopLimits(prompt_length=4096, response_length=4096, max_assistant_turns=1)
    output = await player.play(
        [player.reply(ACTION, end=False)], agent="react_agent", tools=[Calculator], limits=limits
    )
    assert output.stop_reason is StopReason.MAX_TURNS


@pytest.mark.parametrize(
    ("text", "call"),
    [
        (ACTION, {"expression": "6 * 7"}),
        ("Action: calculator\nAction Input: 6 * 7\nObservation:", {"expression": "6 * 7"}),
        ("Action: calculator\nAction Input: 42", {"expression": "42"}),
        ('Action: calculator\n\nAction Input:\n{"expression": "1"}\n', {"expression": "1"}),
    ],
)
def test_actions(text: str, call: dict[str, str]) -> None:
    turn = ReactTurns().parse(text, TOOLS)
    assert [(c.name, c.arguments) for c in turn.tool_calls] == [("calculator", call)]


def test_the_final_answer() -> None:
    assert not ReactTurns().parse(FINAL, TOOLS).wants_tools
    assert not ReactTurns().parse(FINAL + f"\n{ACTION}", TOOLS).wants_tools


def test_an_input_that_fits_no_tool() -> None:
    assert ReactTurns().parse("Action: other\nAction Input: {oops", TOOLS).errors
