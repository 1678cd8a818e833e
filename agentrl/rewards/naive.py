"""The naive reward manager: one call of the score function per trajectory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from agentrl.errors import RewardError, repr_of
from agentrl.interfaces import RewardInput, RewardManager, RewardResult
from agentrl.reported import number_of
from agentrl.rewards.dispatcher import ScoreFunction
from agentrl.rewards.score_call import ONE, ScoreCall


class NaiveRewardManager(RewardManager):
    """Calls `score_fn(data_source=, solution_str=, ground_truth=, extra_info=)` for each trajectory.

    Args:
        score_fn: sync (runs in a thread) or async; returns a number, or a mapping with `score`.
        timeout_s: deadline of one call.

    Raises:
        PluginError: the function cannot be called so.
    """

    def __init__(self, score_fn: ScoreFunction, timeout_s: float = 60.0) -> None:
        self._call = ScoreCall(score_fn, timeout_s, ONE)

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

    A `RewardResult` has been checked.

    Raises:
        RewardError: the score is missing or not a finite number.
    """
    if isinstance(outcome, RewardResult):
        return outcome
    if isinstance(outcome, Mapping):
        if "score" not in outcome:
            raise RewardError(f"the score function returned a mapping without 'score': {sorted(map(str, outcome))}")
        extra = {str(key): value for key, value in outcome.items() if key not in ("score", "service_used")}
        return RewardResult(_finite(outcome["score"]), extra, bool(outcome.get("service_used", True)))
    return RewardResult(_finite(outcome))


def _finite(value: Any) -> float:
    score = number_of(value)
    if score is not None and math.isfinite(score):
        return score
    if score is None and not isinstance(value, int):  # 10**400 is a number, but no float can hold it
        raise RewardError(f"the score function returned {repr_of(value)} ({type(value).__name__}), wanted a number")
    raise RewardError(f"the score function returned {repr_of(value)}, wanted a finite number")
