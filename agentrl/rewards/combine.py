"""A trajectory's reward from its outcome, turns, tool calls, judge and reward model (`reward_model.combine`).

::

    reward = (outcome * score + turn * sum(turn_scores) + tool * sum(tool_rewards)
              + judge * judge_score + model * model_score)

With `level: turn` each turn score and tool reward is placed on the last sampled token of its own turn, and the outcome
on the trajectory's last one; with `level: trajectory` the whole reward is placed there. A reward manager that places
its rewards on tokens itself has them there with either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from agentrl.config.reward_model import CombineConfig
from agentrl.errors import RewardError
from agentrl.interfaces import RewardResult
from agentrl.types import TrajectoryFacts

Placed = list[tuple[int, float]]
"""Response tokens and the rewards placed on them."""


@dataclass(frozen=True, slots=True)
class Combined:
    """A trajectory's whole reward."""

    score: float
    """The whole sum."""
    extra: dict[str, Any]
    """What the score function reported, and the parts if they are weighted."""
    placed: Placed
    """The part of it that is not on the trajectory's last sampled token."""


def combine(
    result: RewardResult,
    facts: TrajectoryFacts,
    response_mask: Sequence[int],
    weights: CombineConfig,
    judge_score: float | None = None,
) -> Combined:
    """Weight and place the rewards of one trajectory.

    Args:
        result: result of the score function.
        facts: its turn scores and tool rewards, and the turn of each.
        response_mask: 1 for each response token that the policy sampled, else 0.
        weights: `reward_model.combine`.
        judge_score: what the judge said; None: there is none.

    Raises:
        RewardError: the sum is not finite, or the loop does not say to which turns its rewards belong.
    """
    if judge_score is None and (weights.outcome, weights.turn, weights.tool) == (1.0, 0.0, 0.0):
        return Combined(result.score, result.extra, list(result.placed))
    turn_scores, tool_rewards = facts.turn_scores, facts.tool_rewards
    parts = {"outcome_score": result.score, "turn_score": sum(turn_scores), "tool_reward": sum(tool_rewards)}
    weighed = list(zip((weights.outcome, weights.turn, weights.tool), parts.values(), strict=True))
    if judge_score is not None:
        parts["judge_score"] = judge_score
        weighed.append((weights.judge, judge_score))
    score = sum(weight * part for weight, part in weighed if weight)
    if not math.isfinite(score):
        raise RewardError(
            f"the reward is {score}, wanted a finite number: {', '.join(f'{name} {p}' for name, p in parts.items())}"
        )
    placed: Placed = [(place, weights.outcome * reward) for place, reward in result.placed if weights.outcome]
    if weights.level == "turn":
        ends = turn_ends(response_mask)
        placed += _place(turn_scores, facts.turn_score_turns, weights.turn, ends, "turn_scores")
        placed += _place(tool_rewards, facts.tool_reward_turns, weights.tool, ends, "tool_rewards")
    return Combined(score, {**result.extra, **parts}, placed)


def add_model_score(
    score: float, extra: Mapping[str, Any], model_score: float, weights: CombineConfig
) -> tuple[float, dict[str, Any]]:
    """Add the score of the reward model, which reads finished conversations, to what `combine` gave.

    Args:
        score: the sum of the other parts.
        extra: what is reported beside it.
        model_score: a finite number.
        weights: `reward_model.combine`.

    Returns:
        The whole reward and what is reported beside it, now with `outcome_score` and `model_score`.
    """
    parts = {"outcome_score": score, **extra}  # `combine` names the outcome only where other parts are in the sum
    return score + weights.model * model_score, {**parts, "model_score": model_score}


def turn_ends(response_mask: Sequence[int]) -> list[int]:
    """The last token of each sampled turn: `[1, 1, 0, 1]` has turns that end at 1 and 3."""
    return [place for place, (own, after) in enumerate(pairwise([*response_mask, 0])) if own and not after]


def _place(
    values: Sequence[float], turns: Sequence[int] | None, weight: float, ends: Sequence[int], name: str
) -> Placed:
    if not weight or not values:
        return []
    if turns is None and len(values) == len(ends):
        turns = range(len(ends))
    if turns is None or len(turns) != len(values) or not all(0 <= turn < len(ends) for turn in turns):
        raise RewardError(
            f"reward_model.combine.level is turn, but the agent loop does not say to which of its {len(ends)} turns "
            f"the {len(values)} {name} belong ({name[:-1]}_turns: got {turns}): report the turns, or use level "
            "trajectory"
        )
    return [(ends[turn], weight * value) for turn, value in zip(turns, values, strict=True)]
