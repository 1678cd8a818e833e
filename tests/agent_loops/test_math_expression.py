"""`math_expression`: expressions are evaluated one by one, a turn without one is the answer."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentrl.agent_loops.math_expression import ExpressionParser, MathExpression
from agentrl.chat.renderer import ChatRenderer
from agentrl.config.root import RunConfig
from agentrl.errors import PluginError
from agentrl.plugins import LoopSpec, load_agent_loops
from agentrl.rollout.setup import RolloutSetup
from agentrl.testing.contracts import check_agent_loop
from agentrl.tools.calculator import Calculator
from agentrl.types import LoopLimits, Sample, StopReason
from tests.agent_loops.exactness import check_exact
from tests.agent_loops.player import Player

WIDE = LoopLimits(prompt_length=4096, response_length=4096)


async def test_it_works_step_by_step(player: Player) -> None:
    turns = ["In May: <expr>48/2</expr>", "In all: <expr> 48 + 24 </expr>", "#### 72"]
    output = await player.play(turns, agent="math_expression", tools=[Calculator])
    said = [(message["role"], message["content"]) for message in output.extra_fields["messages"][1:]]
    assert said == [
        ("user", "What is 6 * 7?"),
        ("assistant", turns[0]),
        ("user", "48/2 = 24"),
        ("assistant", turns[1]),
        ("user", "48 + 24 = 72"),
        ("assistant", turns[2]),
    ]
    assert output.extra_fields["messages"][0]["role"] == "system"
    assert (output.stop_reason, output.metrics["num_tool_calls"]) == (StopReason.COMPLETED, 2)
    assert all(params["stop"] == ["</expr>"] for _, params in player.engine.requests)
    check_exact(player.engine, output)


async def test_a_mistake_is_shown_and_limits_hold(player: Player) -> None:
    output = await player.play(["<expr>1/0</expr>", "so"], agent="math_expression", tools=[Calculator])
    assert "zero" in output.extra_fields["messages"][3]["content"]
    assert output.metrics["num_tool_errors"] == 1
    few = LoopLimits(prompt_length=4096, response_length=4096, max_tool_calls=1)
    output = await player.play(["<expr>1+1</expr>"] * 2, agent="math_expression", tools=[Calculator], limits=few)
    assert output.stop_reason is StopReason.MAX_TOOL_CALLS


@given(
    turns=st.lists(
        st.builds(
            "{}<expr>{}</expr>{}".format,
            st.text(max_size=8).filter(lambda text: "<expr>" not in text),
            st.sampled_from(["1+1", "", "é", "2*(", "<|im_end|>"]),
            st.sampled_from(["", "\n"]),
        ),
        max_size=3,
    ),
    ends=st.booleans(),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_conversations_keep_their_tokens(
    tokenizer: PreTrainedTokenizerFast, turns: list[str], ends: bool
) -> None:
    player = Player(ChatRenderer(tokenizer))
    texts = [turn.encode("utf-8", "replace").decode() for turn in turns]
    replies = [*(player.reply(text, end=ends) for text in texts), player.reply("done")]
    output = asyncio.run(player.play(replies, agent="math_expression", tools=[Calculator], limits=WIDE))
    check_exact(player.engine, output)
    assert output.stop_reason is StopReason.COMPLETED


async def test_contract() -> None:
    await check_agent_loop(LoopSpec("math_expression", MathExpression), "#### 42")


def test_it_is_registered_and_needs_its_tool(tiny_model_dir: object) -> None:
    assert load_agent_loops()["math_expression"].cls is MathExpression
    row = Sample(0, [{"role": "user", "content": "6 * 7?"}], "agentrl/arithmetic", agent_name="math_expression")
    model = {"model": {"path": str(tiny_model_dir)}}
    for turns, words in (
        ({}, "with the tool 'calculator', which is not offered. Set `multi_turn.tool_config_path="),
        ({"tool_config_path": "tools/calculator.yaml"}, ""),
    ):
        run = {"actor_rollout_ref": {**model, "rollout": {"multi_turn": turns}}, "data": {"max_prompt_length": 2048}}
        setup = RolloutSetup.load(RunConfig.model_validate(run))
        if words:
            with pytest.raises(PluginError, match=words):
                setup.check_rows([row])
        else:
            setup.check_rows([row])


def test_the_arguments_of_a_call_are_the_expression() -> None:
    turn = ExpressionParser("calculator").parse("a <expr>1+1</expr>")
    assert turn.tool_calls[0].arguments == {"expression": "1+1"}
    assert turn.tool_calls[0].arguments_span == (8, 11)
