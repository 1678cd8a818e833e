"""Answers to mistakes are known by their places, and no template, tool or interaction sees which they are."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.chat.renderer import ChatRenderer
from agentrl.chat.tool_parsers.search_r1 import SearchR1ToolParser
from agentrl.types import LoopLimits, mark_errors, without_error_marks
from tests.agent_loops.player import Player

GOOD = '<tool_call>\n{"name": "lookup", "arguments": {"key": "k"}}\n</tool_call>'
UNKNOWN = GOOD.replace("lookup", "look")
BROKEN = "<tool_call>\n{\n</tool_call>"


async def lookup(key: str) -> str:
    """Look a key up."""
    return f"Error correction codes are {key}"


async def search(q: str) -> str:
    """Find."""
    return "Error: a title"


class Watched:
    """A renderer that keeps what it was given."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer, self.given = renderer, list[Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._renderer, name)

    def delta(self, messages: Any, **options: Any) -> list[int]:
        self.given += messages
        return self._renderer.delta(messages, **options)


async def test_mistakes_are_known_and_results_that_sound_like_errors_are_none(player: Player) -> None:
    watched = player.renderer = Watched(player.renderer)  # type: ignore[assignment]
    limits = LoopLimits(4096, 4096, max_tool_calls=3)
    output = await player.play([GOOD, UNKNOWN + BROKEN, GOOD + GOOD, "It is k"], tools=[lookup], limits=limits)
    messages, errors = output.extra_fields["messages"], output.extra_fields["tool_errors"]
    wrong = [messages[place]["content"] for place in errors]
    assert len(wrong) == 3, wrong
    assert "look" in wrong[0]
    assert wrong[2].startswith("Not run: this conversation may make at most 3 tool calls")
    assert not any("is_error" in message for message in [*messages, *watched.given])
    assert len(watched.given) == 5
    shown = mark_errors(messages, errors)
    assert [message["is_error"] for message in shown if message["role"] == "tool"] == [False, True, True, False, True]
    assert without_error_marks(shown) == messages


@pytest.mark.parametrize("style", ["chat", "scratchpad", "text"])
async def test_observations_of_react(player: Player, style: str) -> None:
    turns = [f"Action: {name}\nAction Input: {{}}\nObservation:" for name in ("lookup", "look")]
    good = turns[0].replace("{}", '{"key": "k"}')
    replies = [(good, "cut"), (turns[1], "cut"), "Final Answer: 1"]
    output = await player.play(replies, agent="react_agent", tools=[lookup], options={"style": style})
    messages, (place,) = output.extra_fields["messages"], output.extra_fields["tool_errors"]
    assert "look" in messages[place]["content"]
    assert not any("is_error" in message for message in messages)


@pytest.mark.parametrize("ends", [True, False])
async def test_corrections_of_search(player: Player, ends: bool) -> None:
    replies = ["<search>x</search>", "none", "<answer>1</answer>"]
    given = replies if ends else [(reply, "cut") for reply in replies]
    output = await player.play(given, agent="search_r1_agent", tools=[search], parser=SearchR1ToolParser())
    messages, (place,) = output.extra_fields["messages"], output.extra_fields["tool_errors"]
    assert messages[place]["content"].startswith("That was neither a search nor an answer")
    assert not any("is_error" in message for message in messages)


def test_messages_of_which_nobody_knows_have_no_mark() -> None:
    assert mark_errors([{"role": "tool", "content": "1"}], None) == [{"role": "tool", "content": "1"}]
