"""Turns with calls: whatever is called and whatever comes back, the stream is the canonical rendering (R1, R4)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.chat.renderer import ChatRenderer
from agentrl.testing.loops import sampled
from agentrl.trajectory import Trajectory
from tests.chat.shapes import SHAPES, WITH_CALLS
from tests.chat.test_shapes import SCHEMA
from tests.chat.test_stream_properties import FAST, TEXTS

CALLS = st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3)
"""Argument and result of each call of a turn."""


def canonical_turn(renderer: ChatRenderer, before: list[Any], turn: dict[str, Any], tools: Any) -> list[int]:
    """The ids that a model samples when it writes this turn as its template does."""
    prompt = renderer.render_prompt(before, tools)
    ids = renderer.render([*before, turn], tools)
    assert ids[: len(prompt)] == prompt
    ids = ids[len(prompt) :]
    while ids[-1] not in renderer.stop_token_ids:
        ids.pop()  # the separator
    return ids


@pytest.mark.parametrize("name", WITH_CALLS)
@given(prompt=TEXTS, rounds=st.lists(CALLS, min_size=1, max_size=3))
@FAST
def test_several_calls_in_several_turns(name: str, prompt: str, rounds: list[list[tuple[str, str]]]) -> None:
    renderer = SHAPES[name].renderer
    if name == "gpt_oss":
        rounds = [calls[:1] for calls in rounds]
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    trajectory = Trajectory(renderer.render_prompt(messages, [SCHEMA]), 100_000)
    mask: list[int] = []
    for number, calls in enumerate(rounds):
        ids = [f"c{number:04d}{index:04d}" for index in range(len(calls))]
        turn = {
            "role": "assistant",
            "content": "<think>\nI call it.\n</think>\n\n" if name == "thinking" else "",
            "tool_calls": [
                {"id": call_id, "type": "function", "function": {"name": "calculator", "arguments": {"x": argument}}}
                for call_id, (argument, _) in zip(ids, calls, strict=True)
            ],
        }
        turn_ids = canonical_turn(renderer, messages, turn, [SCHEMA])
        results = [
            {"role": "tool", "name": "calculator", "tool_call_id": call_id, "content": result}
            for call_id, (_, result) in zip(ids, calls, strict=True)
        ]
        delta = renderer.delta(results, sampled_ids=turn_ids, tools=[SCHEMA])
        trajectory.append_completion(sampled(turn_ids))
        assert trajectory.append_observation(delta)
        mask += [1] * len(turn_ids) + [0] * len(delta)
        messages += [turn, *results]
        assert trajectory.context_ids == renderer.render_prompt(messages, [SCHEMA])
    trajectory.append_completion(sampled([7]))
    assert trajectory.response_mask == [*mask, 1]
