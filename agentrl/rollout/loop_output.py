"""Checks an agent loop's output, once, before anything else reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from agentrl.errors import PluginError, RewardError, repr_of, suggest
from agentrl.reported import finite_number_of, number_of, whole_number_of
from agentrl.rollout.records import TokenArrays
from agentrl.types import AgentLoopOutput, JsonDict, StopReason, TrajectoryFacts


def loop_output(what: str, result: Any) -> AgentLoopOutput:
    """The `expect` of a loop's `run`, which may give its stop reason as text.

    Raises:
        PluginError: the result is something else, its stop reason does not exist, or a field has another type.
    """
    if not isinstance(result, AgentLoopOutput):
        raise PluginError(f"{what} {repr_of(result)}, wanted an AgentLoopOutput")
    try:
        reason = StopReason(result.stop_reason)
    except ValueError:
        given = repr_of(result.stop_reason)
        raise PluginError(f"{what} stop_reason {given}.{suggest(given[1:-1], list(StopReason))}") from None
    num_turns = whole_number_of(result.num_turns)
    if num_turns is None:
        raise PluginError(f"{what} num_turns {repr_of(result.num_turns)}, wanted a whole number")
    try:
        metrics = _by_name(result.metrics)
    except (TypeError, ValueError, OverflowError):
        raise PluginError(f"{what} metrics {repr_of(result.metrics)}, wanted numbers by name") from None
    return replace(result, stop_reason=reason, num_turns=num_turns, metrics=metrics)


def packed_tokens(output: AgentLoopOutput, loop: str, response_length: int, vocab_size: int) -> TokenArrays:
    """A loop's tokens, checked: at most `response_length` after a prompt, and all of them the model's.

    Raises:
        PluginError: says what was got and what was wanted.
        TokenStreamError: as `TokenArrays.of`.
    """
    try:
        tokens = TokenArrays.of(output)
    except (TypeError, ValueError, OverflowError) as error:
        columns = "prompt_ids, response_ids, response_mask, response_logprobs, weight_versions"
        raise PluginError(f"agent loop '{loop}': {columns}: wanted lists of numbers ({error})") from error
    if len(tokens.response) > response_length:
        raise PluginError(
            f"agent loop '{loop}': its response has {len(tokens.response)} tokens, but data.max_response_length is "
            f"{response_length}"
        )
    if not len(tokens.prompt):
        raise PluginError(f"agent loop '{loop}': prompt_ids is empty, wanted the ids of its first request")
    for name, ids in (("prompt_ids", tokens.prompt), ("response_ids", tokens.response)):
        # On a GPU such an id ends the training process, long after the rollout and without a name. As an unsigned
        # number -1 is 4,294,967,295, so that one maximum finds both kinds of wrong id.
        if len(ids) and ids.view(np.uint32).max() >= vocab_size:
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise PluginError(f"agent loop '{loop}': {name} holds {wrong}, wanted ids from 0 to {vocab_size - 1}")
    return tokens


def read_facts(output: AgentLoopOutput, loop: str) -> TrajectoryFacts:
    """A loop's `extra_fields`, checking the types of those that agentrl reads; None counts as not given.

    Raises:
        PluginError: names the field, its value and what was wanted.
    """
    given = output.extra_fields
    if not isinstance(given, Mapping):
        raise PluginError(f"agent loop '{loop}': extra_fields: got {repr_of(given)}, wanted a mapping")
    known: JsonDict = {}
    other: JsonDict = {}
    for name, value in given.items():
        if name not in _FACTS:
            other[str(name)] = value
        elif value is not None:
            wanted, convert = _FACTS[name]
            try:
                known[name] = convert(value)
            except (TypeError, ValueError, OverflowError):
                text = f"agent loop '{loop}': extra_fields.{name}: got {repr_of(value)}, wanted {wanted}"
                raise PluginError(text) from None
    return TrajectoryFacts(**known, other=other)


def finite_score(score: Any) -> float:
    """A loop's `reward_score`.

    Raises:
        RewardError: it is not a finite number.
    """
    number = finite_number_of(score)
    if number is None:
        raise RewardError(f"the agent loop returned reward_score {repr_of(score)}, wanted a finite number")
    return number


def _numbers(value: Any) -> list[float]:
    return [_number(number) for number in _listed(value)]


def _turns(value: Any) -> list[int]:
    return [_whole(turn) for turn in _listed(value)]


def _messages(value: Any) -> list[JsonDict]:
    return [_mapping(message) for message in _listed(value)]


def _by_name(value: Any) -> dict[str, float]:
    return {str(name): _number(number) for name, number in _mapping(value).items()}


def _number(value: Any) -> float:
    number = number_of(value)
    if number is None:
        raise TypeError
    return number


def _whole(value: Any) -> int:
    number = whole_number_of(value)
    if number is None:
        raise TypeError
    return number


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list) and isinstance(value, str | bytes | Mapping):
        raise TypeError
    return list(value)


def _mapping(value: Any) -> JsonDict:
    if isinstance(value, dict):
        return value
    if not isinstance(value, Mapping):
        raise TypeError
    return dict(value)


_FACTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "messages": ("a list of messages", _messages),
    "turn_scores": ("a list of numbers", _numbers),
    "turn_score_turns": ("a list of whole numbers", _turns),
    "tool_rewards": ("a list of numbers", _numbers),
    "tool_reward_turns": ("a list of whole numbers", _turns),
    "num_tool_calls": ("a whole number", _whole),
    "tool_errors": ("a list of whole numbers", _turns),
    "tool_scores": ("a number by tool name", _by_name),
    "interaction_score": ("a number", _number),
    "stop_tool": ("a mapping", _mapping),
    "error": ("text", str),
}
"""What was wanted of each field of `TrajectoryFacts`, and how it is read."""
