"""A judge and a manager's own metrics on their way from a conversation to the step's metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from judge_endpoint import JudgeEndpoint, judging
from rollout_helpers import MakeEngine, batch_of, sample

from agentrl.config.root import RunConfig
from agentrl.errors import FailureBudgetError
from agentrl.rollout.manager import AgentLoopManager
from agentrl.testing.scripted_engine import Respond

MakeManager = Callable[..., AgentLoopManager]
OWN = """
from agentrl.interfaces import RewardManager, RewardResult


class Own(RewardManager):
    def __init__(self, score_fn, timeout_s):
        pass

    async def score(self, item):
        return RewardResult(2.0, metrics={"good": 1.5, "text": "x", "nan": float("nan"), 7: True})
"""


def test_the_judges_score_is_added_and_a_row_that_it_cannot_score_is_left_out(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, play: Callable[..., Respond]
) -> None:
    def reply(endpoint: JudgeEndpoint, text: str) -> str:
        assert "#### 7" in text
        return "score: 0.5" if len(endpoint.bodies) == 1 else "I cannot tell"

    with judging(reply) as endpoint:
        judge = config.reward_model.judge
        judge.base_url, judge.rubric, judge.cache = endpoint.url, "Is it right?", False
        config.reward_model.combine.judge = 4.0
        config.actor_rollout_ref.rollout.max_failure_rate = 0.5
        config.actor_rollout_ref.rollout.agent.max_in_flight = 1
        manager = make_manager(make_engine(play("#### 7")).address)
        out = manager.generate_sequences(batch_of([sample(0), sample(1)]))
        assert list(out.non_tensor_batch["score"]) == [3.0]
        [extra] = out.non_tensor_batch["reward_extra_info"]
        assert (extra["outcome_score"], extra["judge_score"], extra["judge_reply"]) == (1.0, 0.5, "score: 0.5")
        assert out.meta_info["metrics"]["reward/judge_score/mean"] == 0.5
        [failure] = out.meta_info["failures"]
        assert failure["error"].startswith("RewardError: the judge: the reply holds no score")
        with pytest.raises(FailureBudgetError, match="2 x env_error: RewardError: the judge: the reply holds no score"):
            manager.generate_sequences(batch_of([sample(0), sample(1)]))


def test_numbers_of_a_manager_are_metrics(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, play: Callable[..., Respond], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    config.reward_model.reward_manager = f"{tmp_path / 'own.py'}:Own"
    out: Any = make_manager(make_engine(play("#### 7")).address).generate_sequences(batch_of([sample(0)]))
    metrics = {name: value for name, value in out.meta_info["metrics"].items() if name.startswith("reward/")}
    assert {name.split("/")[1] for name in metrics} == {"good", "7"}
    assert metrics["reward/good/mean"] == 1.5
