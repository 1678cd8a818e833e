"""Scores of lone answers, outside of rollouts: those of the run's reward manager and of its judge, weighted."""

from __future__ import annotations

from agentrl.config.reward_model import CombineConfig
from agentrl.config.root import RunConfig
from agentrl.interfaces import RewardInput, RewardManager, RewardResult
from agentrl.rewards.combine import combine
from agentrl.rewards.judge import RubricJudge, load_judge
from agentrl.rewards.loading import load_reward_manager
from agentrl.types import TrajectoryFacts


class AnswerScores(RewardManager):
    """`outcome * score + judge * judge_score`: a lone answer has neither turns nor calls that earn rewards.

    Args:
        manager: of the run.
        judge: of the run; None: the manager's score is the score.
        weights: `reward_model.combine`.
    """

    def __init__(self, manager: RewardManager, judge: RubricJudge | None, weights: CombineConfig) -> None:
        self._manager, self._judge = manager, judge
        self._weights = weights.model_copy(update={"turn": 0.0, "tool": 0.0, "level": "trajectory"})

    async def score(self, item: RewardInput) -> RewardResult:
        """Score one answer.

        Raises:
            RewardError: the score function or the judge gave no score.
            InfrastructureError: a service behind one of them failed.
        """
        if self._judge is None:
            return await self._manager.score(item)
        result = await self._manager.score(item) if self._weights.outcome else RewardResult(0.0)
        verdict = await self._judge.score(item)
        whole = combine(result, TrajectoryFacts(), [], self._weights, verdict.score)
        return RewardResult(whole.score, {**result.extra, **verdict.extra})

    async def aclose(self) -> None:
        """Close the judge's connections, in the event loop that asked it."""
        if self._judge is not None:
            await self._judge.aclose()


def load_answer_scores(config: RunConfig) -> AnswerScores:
    """What scores lone answers in a run.

    Raises:
        UserInputError: see `load_reward_manager` and `load_judge`.
    """
    return AnswerScores(load_reward_manager(config), load_judge(config), config.reward_model.combine)
