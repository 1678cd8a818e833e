"""What a loop reports besides its tokens has types, and a field of another type is an error that names it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from agentrl.errors import PluginError
from agentrl.rollout.loop_output import _FACTS, read_facts
from agentrl.types import AgentLoopOutput, StopReason, TrajectoryFacts

OUTPUT = AgentLoopOutput([1], [2], [1], [-0.5], 2, StopReason.COMPLETED)
SAID = [{"role": "user", "content": "?"}]


def read(given: Any) -> TrajectoryFacts:
    return read_facts(replace(OUTPUT, extra_fields=given), "mine")


def test_every_fact_is_read() -> None:
    assert _FACTS.keys() | {"other"} == {each.name for each in fields(TrajectoryFacts)}


def test_nothing_is_needed() -> None:
    assert read({}) == TrajectoryFacts()
    assert read({"turn_scores": None, "error": None}) == TrajectoryFacts()


def test_numbers_of_other_kinds_and_other_sequences_are_read() -> None:
    facts = read(
        {
            "messages": tuple(SAID),
            "turn_scores": np.asarray([0.0, 1.0], np.float32),
            "turn_score_turns": (0, np.int64(1)),
            "tool_rewards": [np.float32(0.5), True],
            "num_tool_calls": np.int64(2),
            "tool_scores": {"note": 1},
            "interaction_score": np.float64(0.25),
            "mine": object,
        }
    )
    assert facts == TrajectoryFacts(
        messages=SAID,
        turn_scores=[0.0, 1.0],
        turn_score_turns=[0, 1],
        tool_rewards=[0.5, 1.0],
        num_tool_calls=2,
        tool_scores={"note": 1.0},
        interaction_score=0.25,
        other={"mine": object},
    )
    assert all(type(value) is float for value in facts.turn_scores + facts.tool_rewards)


def test_fields_and_facts_are_the_same() -> None:
    given = {
        "messages": SAID,
        "turn_scores": [],
        "turn_score_turns": [],
        "tool_rewards": [0.5],
        "tool_reward_turns": [0],
        "num_tool_calls": 1,
        "tool_scores": {},
        "stop_tool": {"name": "submit", "arguments": {}, "response": "7"},
        "error": "the judge is gone",
        "num_searches": 3,
    }
    assert read(given).as_fields() == given


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["messages"], r"agent loop 'mine': extra_fields: got \['messages'\], wanted a mapping"),
        ({"messages": "hello"}, r"extra_fields\.messages: got 'hello', wanted a list of messages"),
        ({"messages": ["hello"]}, r"extra_fields\.messages: got \['hello'\], wanted a list of messages"),
        ({"turn_scores": 1.0}, r"extra_fields\.turn_scores: got 1\.0, wanted a list of numbers"),
        ({"turn_scores": "12"}, r"extra_fields\.turn_scores: got '12', wanted a list of numbers"),
        ({"tool_rewards": ["high"]}, r"extra_fields\.tool_rewards: got \['high'\], wanted a list of numbers"),
        ({"tool_reward_turns": [None]}, r"extra_fields\.tool_reward_turns: got \[None\], wanted a list of whole"),
        ({"num_tool_calls": "many"}, r"extra_fields\.num_tool_calls: got 'many', wanted a whole number"),
        ({"tool_scores": [1.0]}, r"extra_fields\.tool_scores: got \[1\.0\], wanted a number by tool name"),
        ({"interaction_score": {}}, r"extra_fields\.interaction_score: got \{\}, wanted a number"),
        ({"stop_tool": "submit"}, r"extra_fields\.stop_tool: got 'submit', wanted a mapping"),
    ],
)
def test_another_type_is_named(given: Any, says: str) -> None:
    with pytest.raises(PluginError, match=says):
        read(given)
