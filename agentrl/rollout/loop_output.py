"""Checks an agent loop's output, once, before anything else reads it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from agentrl.errors import PluginError, RewardError, suggest
from agentrl.types import AgentLoopOutput, JsonDict, StopReason, TrajectoryFacts


def loop_output(what: str, result: Any) -> AgentLoopOutput:
    """The `expect` of a loop's `run`, which may give its stop reason as text.

    Raises:
        PluginError: the result is something else, or its stop reason does not exist.
    """
    if not isinstance(result, AgentLoopOutput):
        raise PluginError(f"{what} {result!r:.200}, wanted an AgentLoopOutput")
    reasons = [reason.value for reason in StopReason]
    if result.stop_reason not in reasons:
        raise PluginError(f"{what} stop_reason {result.stop_reason!r}.{suggest(str(result.stop_reason), reasons)}")
    return replace(result, stop_reason=StopReason(result.stop_reason))


def check_length(output: AgentLoopOutput, loop: str, response_length: int) -> None:
    """Refuse a response that is longer than the run allows.

    Raises:
        PluginError: names both lengths.
    """
    if len(output.response_ids) > response_length:
        raise PluginError(
            f"agent loop '{loop}': its response has {len(output.response_ids)} tokens, but data.max_response_length is "
            f"{response_length}"
        )


def read_facts(output: AgentLoopOutput, loop: str) -> TrajectoryFacts:
    """A loop's `extra_fields`, checking the types of those that agentrl reads; None counts as not given.

    Raises:
        PluginError: names the field, its value and what was wanted.
    """
    given = output.extra_fields
    if not isinstance(given, Mapping):
        raise PluginError(f"agent loop '{loop}': extra_fields: got {given!r:.200}, wanted a mapping")
    known: JsonDict = {}
    for name, (wanted, convert) in _FACTS.items():
        value = given.get(name)
        if value is None:
            continue
        try:
            known[name] = convert(value)
        except (TypeError, ValueError):
            text = f"agent loop '{loop}': extra_fields.{name}: got {value!r:.200}, wanted {wanted}"
            raise PluginError(text) from None
    other = {str(name): value for name, value in given.items() if name not in _FACTS}
    return TrajectoryFacts(**known, other=other)


def finite_score(score: Any) -> float:
    """A loop's `reward_score`.

    Raises:
        RewardError: it is not a finite number.
    """
    try:
        number = float(score)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise RewardError(f"the agent loop returned reward_score {score!r}, wanted a finite number")
    return number


def _numbers(value: Any) -> list[float]:
    return [float(number) for number in _listed(value)]


def _turns(value: Any) -> list[int]:
    return [int(turn) for turn in _listed(value)]


def _messages(value: Any) -> list[JsonDict]:
    return [_mapping(message) for message in _listed(value)]


def _by_name(value: Any) -> dict[str, float]:
    return {str(name): float(number) for name, number in _mapping(value).items()}


def _listed(value: Any) -> list[Any]:
    if isinstance(value, str | bytes | Mapping):
        raise TypeError
    return list(value)


def _mapping(value: Any) -> JsonDict:
    if not isinstance(value, Mapping):
        raise TypeError
    return value if isinstance(value, dict) else dict(value)


_FACTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "messages": ("a list of messages", _messages),
    "turn_scores": ("a list of numbers", _numbers),
    "turn_score_turns": ("a list of whole numbers", _turns),
    "tool_rewards": ("a list of numbers", _numbers),
    "tool_reward_turns": ("a list of whole numbers", _turns),
    "num_tool_calls": ("a whole number", int),
    "tool_scores": ("a number by tool name", _by_name),
    "interaction_score": ("a number", float),
    "stop_tool": ("a mapping", _mapping),
    "error": ("text", str),
}
"""What was wanted of each field of `TrajectoryFacts`, and how it is read."""
