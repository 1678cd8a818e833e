"""What a trajectory spends its time on: noted once, told in dumps, metrics and traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollout_helpers import ANSWER, CALL, MakeEngine, batch_of, sample, use_plugins

from agentrl.config.root import RunConfig
from agentrl.observability.rollout_log import write_rollouts
from agentrl.rollout.manager import AgentLoopManager

MakeManager = Callable[..., AgentLoopManager]
PLUGINS = """
import asyncio

from agentrl.agent_loops.tool_agent import ToolAgent as Loop
from agentrl.interfaces import BaseInteraction, BaseTool, InteractionResponse
from agentrl.types import ToolResponse


class Tool(BaseTool):
    @classmethod
    def default_schema(cls):
        return {"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}

    async def create(self):
        pass

    async def execute(self, arguments):
        await asyncio.sleep(0.02)
        return ToolResponse("7")

    async def calc_reward(self):
        return 1.0

    async def release(self):
        pass


class Other(BaseInteraction):
    async def start_interaction(self, **kwargs):
        pass

    async def generate_response(self, messages):
        return InteractionResponse(should_terminate=True, content="")

    async def finalize_interaction(self):
        pass


def score(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0
"""


def told(timeline: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(span["name"], span["detail"]) for span in timeline]


def test_the_dump_tells_what_a_conversation_waited_for(
    make_engine: MakeEngine, make_manager: MakeManager, tmp_path: Path
) -> None:
    out = make_manager(make_engine().address).generate_sequences(batch_of([sample(0)]))
    file = write_rollouts(tmp_path, 1, [out], str)
    assert file is not None
    timeline = json.loads(file.read_text())["timeline"]
    assert told(timeline) == [
        ("generate", "turn 1"),
        ("tool", "calculator"),
        ("generate", "turn 2"),
        ("score", "tool 'calculator'"),
        ("score", "outcome"),
    ]
    assert all(span.keys() == {"name", "start", "seconds", "detail"} for span in timeline)
    ends = [0.0, *(span["start"] + span["seconds"] for span in timeline)]
    assert all(end <= span["start"] + 2e-6 for end, span in zip(ends[:-1], timeline, strict=True))  # rounded
    metrics = out.non_tensor_batch["metrics"][0]
    assert 0 < ends[-1] <= metrics["seconds"]
    seconds = [span["seconds"] for span in timeline]
    assert metrics["generate_sequences"] >= seconds[0] + seconds[2] - 2e-6  # as the loop reports it
    assert metrics["tool_calls"] >= seconds[1] > 0
    assert metrics["compute_score"] == pytest.approx(seconds[-1], abs=2e-6)


def test_turns_at_a_tool_and_answers_of_an_interaction_are_waits(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, play: Any, tmp_path: Path
) -> None:
    use_plugins(config, tmp_path, PLUGINS, tool="{max_concurrency: 1}")
    engine = make_engine(play(CALL + CALL, ANSWER))
    row = sample(0, interaction_kwargs={"name": "other"})
    out = make_manager(engine.address).generate_sequences(batch_of([row]))
    first, *others = told(out.non_tensor_batch["timeline"][0])
    assert first == ("tool", "calculator: create")
    assert others == [
        ("wait", "interaction 'other': start"),
        ("generate", "turn 1"),
        ("tool", "calculator"),
        ("wait", "its turn at tool 'calculator'"),
        ("tool", "calculator"),
        ("generate", "turn 2"),
        ("wait", "interaction 'other'"),
        ("score", "tool 'calculator'"),
        ("score", "interaction 'other'"),
        ("score", "outcome"),
        ("tool", "calculator: release"),
        ("wait", "interaction 'other': end"),
    ]
