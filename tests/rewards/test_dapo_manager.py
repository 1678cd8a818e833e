"""The dapo manager: DAPO's penalty for long responses, in both of verl's spellings."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agentrl.config import RunConfig, load_config
from agentrl.config.rewards import OverlongBufferConfig
from agentrl.errors import ConfigError
from agentrl.interfaces import RewardInput, RewardManager, RewardResult
from agentrl.observability.dumps import outcome_of
from agentrl.rewards.dapo import overlong_penalty
from agentrl.rewards.loading import load_reward_manager
from agentrl.types import AgentLoopOutput, StopReason

BUFFER = {"enable": True, "len": 20, "penalty_factor": 0.5, "log": True}
NEEDED = {"actor_rollout_ref.model.path": "m", "data.train_files": "x.parquet"}


def item(tokens: int, text: str = "#### 72") -> RewardInput:
    ids = list(range(tokens))
    output = AgentLoopOutput([1], ids, [1] * tokens, [0.0] * tokens, num_turns=2, stop_reason=StopReason.COMPLETED)
    return RewardInput("openai/gsm8k", text, "72", {}, output=output)


def manager(reward_model: dict[str, Any], length: int = 100) -> RewardManager:
    section = {"reward_manager": "dapo", **reward_model}
    return load_reward_manager(
        RunConfig.model_validate({"reward_model": section, "data": {"max_response_length": length}})
    )


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(0, 0.0), (79, 0.0), (80, 0.0), (81, -0.025), (90, -0.25), (99, -0.475), (100, -0.5)]
)
def test_the_penalty(tokens: int, penalty: float) -> None:
    assert overlong_penalty(tokens, 100, OverlongBufferConfig(**BUFFER)) == pytest.approx(penalty)


@pytest.mark.parametrize(
    "reward_model",
    [
        {"overlong_buffer": BUFFER},
        {"reward_kwargs": {"overlong_buffer_cfg": BUFFER, "max_resp_len": 100}},
        {"reward_kwargs": {"overlong_buffer_cfg": BUFFER}},
        {"overlong_buffer": BUFFER, "reward_kwargs": {"max_resp_len": 100}},
    ],
)
async def test_it_is_added_to_the_score_and_told(reward_model: dict[str, Any]) -> None:
    own = manager(reward_model)
    told = {"overlong_reward": -0.25, "overlong": 1.0}
    assert await own.score(item(90)) == RewardResult(0.75, {"acc": 1.0, **told}, metrics=told)
    told = {"overlong_reward": 0.0, "overlong": 0.0}
    assert await own.score(item(80)) == RewardResult(1.0, {"acc": 1.0, **told}, metrics=told)
    assert (await own.score(item(100, "#### 1"))).score == -0.5, "a wrong answer too"


async def test_without_log_it_is_in_the_dump_alone() -> None:
    """`agentrl replay` takes the score function's part from there."""
    result = await manager({"overlong_buffer": {**BUFFER, "log": False}}).score(item(90))
    assert result == RewardResult(0.75, {"acc": 1.0, "overlong_reward": -0.25, "overlong": 1.0})
    assert outcome_of({"score": result.score, "reward_extra_info": result.extra}) == pytest.approx(1.0)


async def test_another_largest_length() -> None:
    own = manager({"overlong_buffer": BUFFER, "reward_kwargs": {"max_resp_len": 60}})
    assert (await own.score(item(50))).score == 0.75


@pytest.mark.parametrize("reward_model", [{}, {"reward_kwargs": {"overlong_buffer_cfg": {**BUFFER, "enable": False}}}])
async def test_without_the_penalty_it_scores_as_naive(reward_model: dict[str, Any]) -> None:
    assert await manager(reward_model).score(item(100)) == RewardResult(1.0)


async def test_an_answer_of_which_only_the_text_is_known_has_no_penalty() -> None:
    assert (await manager({"overlong_buffer": BUFFER}).score(RewardInput("gsm8k", "#### 72", "72"))).score == 1.0


def of_run(**reward_model: Any) -> RunConfig:
    return load_config({**NEEDED, "data.max_response_length": 100, "reward_model": reward_model})


def test_verls_command_acts() -> None:
    lines = [f"reward_model.overlong_buffer.{name}={str(value).lower()}" for name, value in BUFFER.items()]
    config = load_config(NEEDED, ["reward_model.reward_manager=dapo", "data.max_response_length=100", *lines])
    assert config.reward_model.overlong_buffer == OverlongBufferConfig(**BUFFER)
    newer = [f"+reward.reward_kwargs.overlong_buffer_cfg.{name}={str(value).lower()}" for name, value in BUFFER.items()]
    newer += ["reward.reward_manager.name=dapo", "+reward.reward_kwargs.max_resp_len=${data.max_response_length}"]
    config = load_config({**NEEDED, "data.max_response_length": 100}, newer)
    assert config.reward_model.reward_kwargs == {"overlong_buffer_cfg": BUFFER, "max_resp_len": 100}


@pytest.mark.parametrize(
    ("reward_model", "problem"),
    [
        ({"overlong_buffer": {**BUFFER, "len": 0}}, "overlong_buffer.len: got 0, wanted 1 to 100 tokens (the run's"),
        ({"overlong_buffer": {**BUFFER, "len": 101}}, "overlong_buffer.len: got 101, wanted 1 to 100 tokens"),
        (
            {"reward_kwargs": {"overlong_buffer_cfg": BUFFER, "max_resp_len": 10}},
            "overlong_buffer_cfg.len: got 20, wanted 1 to 10 tokens (reward_model.reward_kwargs.max_resp_len",
        ),
        (
            {"reward_kwargs": {"overlong_buffer_cfg": BUFFER}, "overlong_buffer": BUFFER},
            "reward_model.reward_kwargs.overlong_buffer_cfg: reward_model.overlong_buffer is given too",
        ),
        ({"reward_kwargs": {"overlong_bufer_cfg": BUFFER}}, "Did you mean 'overlong_buffer_cfg'"),
        ({"reward_kwargs": {"overlong_buffer_cfg": {"enabled": True}}}, "Did you mean 'enable'"),
        ({"reward_kwargs": {"overlong_buffer_cfg": {"len": "x"}}}, "overlong_buffer_cfg.len: got 'x'"),
        ({"reward_kwargs": {"overlong_buffer_cfg": 4}}, "overlong_buffer_cfg: got 4, wanted a mapping"),
        ({"reward_kwargs": {"max_resp_len": "x"}}, "max_resp_len: got 'x', wanted a number of tokens"),
    ],
)
def test_what_cannot_work_is_told_before_anything_loads(reward_model: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        of_run(reward_manager="dapo", **reward_model)


def test_another_manager_adds_no_penalty() -> None:
    with pytest.raises(ConfigError, match=r"the reward manager is naive, which adds no penalty: set .*=dapo"):
        of_run(overlong_buffer=BUFFER)
