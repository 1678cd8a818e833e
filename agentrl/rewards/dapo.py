"""The reward manager `dapo`: the score function's score, less a penalty for long responses.

With `max_response_length` 100, `overlong_buffer.len` 20 and `penalty_factor` 0.5::

    tokens       80      90      100
    penalty       0    -0.25    -0.5
"""

from __future__ import annotations

from dataclasses import replace

from agentrl.config.rewards import OverlongBufferConfig
from agentrl.interfaces import RewardInput, RewardManager, RewardResult
from agentrl.rewards.dispatcher import ScoreFunction
from agentrl.rewards.naive import NaiveRewardManager


class DapoRewardManager(RewardManager):
    """Scores as `naive` does and adds the penalty of DAPO's equation 13 (arXiv 2503.14476).

    Every token after the prompt counts, what tools and users wrote too: it fills the same budget. A response of which
    only the text is known (`agentrl check --grader`, `agentrl eval`) has no penalty. As in verl, `acc` is the score
    without the penalty, unless the function reports an `acc`. A dump always says the penalty (`overlong_reward`).

    Args:
        score_fn: see `NaiveRewardManager`.
        timeout_s: deadline of one call.
        max_response_length: the largest length.
        overlong: the penalty.

    Raises:
        PluginError: the function cannot be called so.
    """

    def __init__(
        self,
        score_fn: ScoreFunction,
        timeout_s: float = 60.0,
        *,
        max_response_length: int = 0,
        overlong: OverlongBufferConfig | None = None,
    ) -> None:
        self._scores = NaiveRewardManager(score_fn, timeout_s)
        self._max = max_response_length
        self._overlong = overlong if overlong is not None and overlong.enable else None

    async def score(self, item: RewardInput) -> RewardResult:
        """Score one trajectory.

        Raises:
            RewardError: the function raised, took too long, or returned no finite number.
            InfrastructureError: a service behind the function failed.
        """
        result = await self._scores.score(item)
        if self._overlong is None or item.output is None:
            return result
        penalty = overlong_penalty(len(item.output.response_ids), self._max, self._overlong)
        told = {"overlong_reward": penalty, "overlong": float(penalty < 0)}
        return replace(
            result,
            score=result.score + penalty,
            extra={"acc": result.score, **result.extra, **told},
            metrics={**result.metrics, **(told if self._overlong.log else {})},
        )


def overlong_penalty(length: int, max_response_length: int, overlong: OverlongBufferConfig) -> float:
    """What is added to the score of a response of this many tokens: 0 or less."""
    into_buffer = length - (max_response_length - overlong.len)
    return min(-into_buffer / overlong.len * overlong.penalty_factor, 0.0) if into_buffer > 0 else 0.0
