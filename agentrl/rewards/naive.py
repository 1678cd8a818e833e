"""The naive reward manager: one call of the score function per trajectory."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

from agentrl.errors import RewardError, repr_of
from agentrl.interfaces import RewardInput, RewardManager, RewardResult
from agentrl.rewards.dispatcher import ScoreFunction
from agentrl.rewards.score_call import ScoreCall


class NaiveRewardManager(RewardManager):
    """Calls `score_fn(data_source=, solution_str=, ground_truth=, extra_info=)` for each trajectory.

    Args:
        score_fn: sync (runs in a thread) or async; returns a number, or a mapping with `score`.
        timeout_s: deadline of one call.
    """

    def __init__(self, score_fn: ScoreFunction, timeout_s: float = 60.0) -> None:
        self._call = ScoreCall(score_fn, timeout_s)

    async def score(self, item: RewardInput) -> RewardResult:
        """Score one trajectory.

        Raises:
            RewardError: the function raised, took too long, or returned no finite number.
            InfrastructureError: a service behind the function failed.
        """
        outcome = await self._call(
            data_source=item.data_source,
            solution_str=item.solution_str,
            ground_truth=item.ground_truth,
            extra_info=item.extra_info,
        )
        return to_result(outcome)


def to_result(outcome: Any) -> RewardResult:
    """Check what a score function returned: a number, or a mapping with `score` and optionally `service_used`.

    Raises:
        RewardError: the score is missing or not a finite number.
    """
    if isinstance(outcome, Mapping):
        if "score" not in outcome:
            raise RewardError(f"the score function returned a mapping without 'score': {sorted(map(str, outcome))}")
        extra = {str(key): value for key, value in outcome.items() if key not in ("score", "service_used")}
        return RewardResult(_finite(outcome["score"]), extra, bool(outcome.get("service_used", True)))
    return RewardResult(_finite(outcome))


def _finite(value: Any) -> float:
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        value = item()
    if not isinstance(value, numbers.Real):
        raise RewardError(f"the score function returned {repr_of(value)} ({type(value).__name__}), wanted a number")
    try:
        score = float(value)
    except OverflowError:  # 10**400
        score = math.inf
    if not math.isfinite(score):
        raise RewardError(f"the score function returned {repr_of(value)}, wanted a finite number")
    return score
