"""Rewards of outcome, turns and tools: their weights, and the tokens that they sit on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.config import check_run_config
from agentrl.config.reward_model import CombineConfig
from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError, RewardError
from agentrl.interfaces import RewardResult
from agentrl.rewards.combine import combine, turn_ends
from agentrl.types import TrajectoryFacts

FIELDS = {
    "turn_scores": [0.0, 1.0],
    "turn_score_turns": [0, 2],
    "tool_rewards": [-0.5, 0.25],
    "tool_reward_turns": [0, 1],
}
SAMPLED = [1, 1, 0, 0, 1, 0, 1, 1]


def weigh(fields: dict[str, Any] = FIELDS, **weights: Any) -> Any:
    return combine(RewardResult(2.0, {"why": "x"}), TrajectoryFacts(**fields), SAMPLED, CombineConfig(**weights))


def test_the_outcome_alone_is_the_default() -> None:
    whole = weigh()
    assert (whole.score, whole.extra, whole.placed) == (2.0, {"why": "x"}, [])


@pytest.mark.parametrize(
    ("weights", "score"),
    [
        ({"turn": 0.5}, 2.5),
        ({"tool": 2.0}, 1.5),
        ({"outcome": 0.0, "turn": 1.0}, 1.0),
        ({"outcome": 0.5, "turn": 1.0, "tool": 1.0}, 1.75),
    ],
)
def test_the_sum_of_weighted_parts(weights: dict[str, float], score: float) -> None:
    whole = weigh(**weights)
    assert whole.score == score
    assert whole.placed == []
    assert whole.extra == {"why": "x", "outcome_score": 2.0, "turn_score": 1.0, "tool_reward": -0.25}


def test_turns_get_their_own_rewards() -> None:
    whole = weigh(turn=1.0, tool=2.0, level="turn")
    assert whole.score == 2.5
    assert whole.placed == [(1, 0.0), (7, 1.0), (1, -1.0), (4, 0.5)]
    assert weigh(tool=2.0, level="turn").placed == [(1, -1.0), (4, 0.5)]


def test_a_turn_ends_at_its_last_sampled_token() -> None:
    assert turn_ends(SAMPLED) == [1, 4, 7]
    assert turn_ends([0, 1, 1]) == [2]
    assert turn_ends([]) == []


def test_a_loop_that_does_not_say_which_turn() -> None:
    fields = {"turn_scores": [1.0, 2.0, 3.0]}
    assert weigh(fields, turn=1.0, level="turn").placed == [(1, 1.0), (4, 2.0), (7, 3.0)]  # one for each turn
    for bad in ({"turn_scores": [1.0]}, {"turn_scores": [1.0], "turn_score_turns": [3]}):
        with pytest.raises(RewardError, match=r"to which of its 3 turns the 1 turn_scores belong \(turn_score_turns: "):
            weigh(bad, turn=1.0, level="turn")


def test_settings_that_cannot_work(tiny_model_dir: Path) -> None:
    config = RunConfig()
    config.algorithm.adv_estimator = "grpo"
    combine = config.reward_model.combine
    combine.outcome = 0.0

    def problems() -> str:
        with pytest.raises(ConfigError) as caught:
            check_run_config(config)
        return str(caught.value)

    assert "reward_model.combine: outcome, turn and tool are all 0" in problems()
    combine.turn, combine.level = 1.0, "turn"
    assert "combine.level: turn has no effect with algorithm.adv_estimator grpo" in problems()
    config.algorithm.adv_estimator = "own.py:by_token"  # which gets the rewards of single tokens
    assert "combine.level" not in problems()
    config.algorithm.adv_estimator = "grpo"
    config.algorithm.adv_estimator = "gae"
    assert "combine" not in problems()
