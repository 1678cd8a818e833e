"""ReAct in text: actions, observations, the final answer and what counts as a mistake."""

from __future__ import annotations

import pytest

from agentrl.agent_loops.react_agent import ReactAgent, ReactTurns
from agentrl.errors import PluginError
from agentrl.plugins.adapt import schema_of
from agentrl.tools.calculator import Calculator
from agentrl.types import LoopLimits, StopReason
from tests.agent_loops.exactness import check_exact
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


@pytest.mark.parametrize("given", ["6 * 7", '{"expression": "6 * 7"}', '{"expression": ', ""])
async def test_an_unknown_action_is_told_as_unknown(player: Player, given: str) -> None:
    said = f"Action: calculatr\nAction Input: {given}".removesuffix("\nAction Input: ")
    output = await player.play([said, FINAL], agent="react_agent", tools=[Calculator])
    observation = output.extra_fields["messages"][-2]["content"]
    assert "here is no tool named 'calculatr'. Did you mean 'calculator'?" in observation
    assert "JSON" not in observation
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


@pytest.mark.parametrize(
    ("tail", "shown"),
    [
        ("\nObservation:", "\nObservation: 42\nThought:"),
        ("\nObservation: ", "\nObservation: 42\nThought:"),
        ("", "\nObservation: 42\nThought:"),
    ],
)
@pytest.mark.parametrize("style", ["scratchpad", "text"])
async def test_observations_within_the_models_turn(player: Player, style: str, tail: str, shown: str) -> None:
    """The ids of a stop string run through its end, and may bring more text along."""
    action = ACTION.removesuffix("\nObservation:")
    output = await player.play(
        [player.reply(action + tail, end=False), FINAL],
        agent="react_agent",
        tools=[Calculator],
        options={"style": style},
    )
    check_exact(player.engine, output)
    assert player.renderer.decode(output.response_ids) == action + shown + FINAL
    assert output.stop_reason is StopReason.COMPLETED
    assert output.num_turns == 4


async def test_a_text_has_no_chat_template(player: Player) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 * 7?"}]
    output = await player.play([FINAL], agent="react_agent", messages=messages, options={"style": "text"})
    assert player.renderer.decode(output.prompt_ids) == "Be brief.\n\nQuestion: 6 * 7?\nThought:"
    assert player.engine.requests[0][1]["stop"] == ["Observation:", "\nQuestion:"]


@pytest.mark.parametrize(("style", "opens"), [("scratchpad", "<|im_end|>\n<|im_start|>user\n"), ("text", "\n")])
async def test_an_action_with_an_end_of_turn(player: Player, style: str, opens: str) -> None:
    action = ACTION.removesuffix("\nObservation:")
    output = await player.play([action, FINAL], agent="react_agent", tools=[Calculator], options={"style": style})
    check_exact(player.engine, output)
    assert f"{opens}Observation: 42" in player.renderer.encoder.decode(output.response_ids)


async def test_several_actions_are_answered_in_one_message(player: Player) -> None:
    both = 'Action: calculator\nAction Input: {"expression": "1+1"}\n' * 2
    output = await player.play([both, FINAL], agent="react_agent", tools=[Calculator])
    assert output.extra_fields["messages"][-2]["content"] == "Observation: 2\nObservation: 2"
    assert output.extra_fields["num_tool_calls"] == 2


def test_an_unknown_style_is_refused_at_the_start(player: Player) -> None:
    with pytest.raises(PluginError, match=r"`style` is 'chatt'\. Did you mean 'chat'"):
        ReactAgent.render_prompt(player.renderer, [{"role": "user", "content": "?"}], [], style="chatt")


async def test_a_system_message_keeps_its_text(player: Player) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 * 7?"}]
    output = await player.play([FINAL], agent="react_agent", tools=[Calculator], messages=messages)
    assert output.extra_fields["messages"][0]["content"].startswith("Be brief.\n\nYou can use these tools:")
