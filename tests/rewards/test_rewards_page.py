"""docs/rewards.md: its code runs, its settings load, and its numbers come out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from sandbox_server import Sandbox

from agentrl.config import RunConfig
from agentrl.interfaces import RewardInput, RewardResult
from agentrl.rewards.combine import combine
from agentrl.rewards.loading import load_reward_manager
from agentrl.rewards.scores import math
from agentrl.types import TrajectoryFacts

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")
SCORE, QUEUES, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
SETTINGS = [block for block in BLOCKS if "combine" in block["reward_model"]]


async def test_the_score_function(tmp_path: Path) -> None:
    (tmp_path / "my_score.py").write_text(SCORE)
    config = RunConfig()
    config.custom_reward_function.path = str(tmp_path / "my_score.py")
    config.custom_reward_function.reward_kwargs = {"penalty": 0.05}
    item = RewardInput("my/own", "It is 7", 7, {"num_tool_calls": 2})
    assert await load_reward_manager(config).score(item) == RewardResult(0.9, {"right": True})


async def test_the_score_function_that_waits(tmp_path: Path) -> None:
    (tmp_path / "my_queue.py").write_text(QUEUES)
    config = RunConfig()
    config.custom_reward_function.path = str(tmp_path / "my_queue.py")
    assert (await load_reward_manager(config).score(RewardInput("my/own", "It is 7", 7, {}))).score == 1.0


PAIRS = re.findall(r"`([^`]+)` ([=≠]) `([^`]+)`", PAGE.partition("## Mathematics")[2].partition("## Code")[0])


@pytest.mark.parametrize(("answer", "sign", "gold"), PAIRS)
def test_the_table_of_mathematics(answer: str, sign: str, gold: str) -> None:
    """Each pair of the table, in both directions, through the processes that a run uses."""
    wanted = float(sign == "=")
    assert math.compute_score(f"\\boxed{{{answer}}}", gold) == wanted
    assert math.compute_score(f"\\boxed{{{gold}}}", answer) == wanted


def test_the_table_of_mathematics_is_read_whole() -> None:
    assert len(PAIRS) == PAGE.count("` = `") + PAGE.count("` ≠ `") > 90


async def test_the_code_settings(sandbox: Sandbox) -> None:
    """The page's example of each kind of ground truth passes, with the page's settings."""
    (settings,) = [block for block in BLOCKS if "sandbox_fusion" in block["reward_model"]]
    config = RunConfig.model_validate(settings)
    config.reward_model.sandbox_fusion.url = f"{sandbox.url}/run_code"
    manager = load_reward_manager(config)
    add = "```python\ndef add(a, b):\n    return a + b\n```"
    square = "```python\nprint(int(input()) ** 2)\n```"
    for answer, truth in (
        (square, {"inputs": ["2\n"], "outputs": ["4\n"]}),
        (add, {"fn_name": "add", "inputs": ["1\n2"], "outputs": ["3"]}),
        (add, ["assert add(1, 2) == 3"]),
    ):
        assert (await manager.score(RewardInput("taco", answer, truth))).score == 1.0


@pytest.mark.parametrize(
    ("number", "score", "fields", "placed"),
    [
        (0, 0.9, {"tool_rewards": [-0.1, -0.1], "tool_reward_turns": [0, 1]}, []),
        (1, 1.0, {"turn_scores": [0.0, 1.0], "turn_score_turns": [0, 1]}, [(1, 0.0), (4, 1.0)]),
        (
            2,
            0.7,
            {
                "turn_scores": [0.0, 1.0],
                "turn_score_turns": [0, 1],
                "tool_rewards": [-0.5],
                "tool_reward_turns": [0],
            },
            [(1, 0.0), (4, 0.2), (1, -0.5)],
        ),
    ],
)
def test_the_schemes(number: int, score: float, fields: dict[str, Any], placed: list[Any]) -> None:
    config = RunConfig.model_validate(SETTINGS[number])
    weights = config.reward_model.combine
    mask = [1, 1, 0, 1, 1]
    whole = combine(RewardResult(1.0 if weights.outcome else 0.0), TrajectoryFacts(**fields), mask, weights)
    assert whole.score == pytest.approx(score)
    assert whole.placed == placed
