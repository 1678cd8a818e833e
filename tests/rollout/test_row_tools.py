"""What a row says about its tools acts in its own trajectories: limits, descriptions, format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollout_helpers import CALL, MakeEngine, batch_of, sample, use_plugins

from agentrl.config.root import RunConfig
from agentrl.errors import FailureBudgetError, PluginError
from agentrl.rollout.manager import AgentLoopManager
from agentrl.rollout.setup import RolloutSetup
from agentrl.testing.scripted_engine import Respond

PLAIN = {"name": "calculator", "description": "Adds.", "parameters": {"expression": {"type": "string"}}}
AS_READ = {"available_tools": ["calculator"], "tools": {"calculator": PLAIN}}


def test_calls_are_limited_per_row(
    make_engine: MakeEngine, make_manager: Callable[..., AgentLoopManager], play: Callable[..., Respond]
) -> None:
    manager = make_manager(make_engine(play(CALL)).address)
    rows = [sample(0), sample(1, tool_config={"max_tool_calls": 1}), sample(2, tool_config={"max_tool_calls": 2.0})]
    rolled = manager.generate_sequences(batch_of(rows))
    assert [int(n) for n in rolled.non_tensor_batch["num_tool_calls"]] == [3, 1, 2]


SLOW = """
import asyncio
from agentrl.agent_loops.tool_agent import ToolAgent as Loop
from agentrl.interactions.gsm8k import Gsm8kInteraction as Other


async def Tool(seconds: float) -> str:
    '''Wait.

    Args:
        seconds: how long.
    '''
    await asyncio.sleep(seconds)
    return "done"


def score(**kwargs):
    return 1.0
"""
WAIT = '<tool_call>\n{"name": "Tool", "arguments": {"seconds": 30}}\n</tool_call>'


def test_a_rows_timeout_is_the_deadline_of_its_calls(
    config: RunConfig,
    tmp_path: Path,
    make_engine: MakeEngine,
    make_manager: Callable[..., AgentLoopManager],
    play: Callable[..., Respond],
) -> None:
    use_plugins(config, tmp_path, SLOW, tool="{timeout_s: 60}")
    manager = make_manager(make_engine(play(WAIT)).address)
    with pytest.raises(FailureBudgetError, match=r"tool 'Tool': execute took longer than 0\.2 s"):
        manager.generate_sequences(batch_of([sample(0, tool_config={"timeout": 0.2})]))


def test_the_model_reads_the_rows_description(config: RunConfig) -> None:
    setup = RolloutSetup.load(config)
    for fields, wanted in (({}, "Evaluate an arithmetic"), ({"tool_config": AS_READ}, "Adds.")):
        row = sample(0, **fields)
        setup.check_rows([row])
        assert wanted in setup.renderer.tokenizer.decode(setup.prompt_ids(row))
    described = setup.offered_tools(sample(0, tool_config=AS_READ))[0]
    assert described is setup.offered_tools(sample(1, tool_config=AS_READ))[0]
    assert described.schema["function"]["parameters"]["required"] == ["expression"]


@pytest.mark.parametrize(
    ("config_of_row", "words"),
    [
        ({"available_tools": ["calculater"]}, "no tool is named 'calculater'. Did you mean 'calculator'"),
        (
            {**AS_READ, "tools": {"calculator": {**PLAIN, "parameters": {"expresion": {"type": "string"}}}}},
            "tool 'calculator' takes no argument 'expresion'. Did you mean 'expression'",
        ),
        ({"tool_format": "hermess"}, "no tool parser (`multi_turn.format`) is named 'hermess'. Did you mean 'hermes'"),
    ],
)
def test_what_a_row_names_wrongly_is_told_at_the_start(
    config: RunConfig, config_of_row: dict[str, Any], words: str
) -> None:
    with pytest.raises(PluginError) as caught:
        RolloutSetup.load(config).check_rows([sample(0, tool_config=config_of_row)])
    assert words in str(caught.value)


def test_limits_of_tools_need_a_loop_with_tools(config: RunConfig) -> None:
    row = sample(0, agent_name="single_turn_agent", tool_config={"max_tool_calls": 2})
    with pytest.raises(PluginError, match="gives tools but names the agent loop 'single_turn_agent', which ignores"):
        RolloutSetup.load(config).check_rows([row])


def test_function_calling_reads_calls_as_the_run_does(config: RunConfig) -> None:
    setup = RolloutSetup.load(config)
    assert setup.parser_of(sample(0, tool_config={"tool_format": "function_calling"})) is setup.parser
    config.actor_rollout_ref.rollout.multi_turn.format = "function_calling"
    assert RolloutSetup.load(config).parser.parse(CALL).tool_calls[0].name == "calculator"
