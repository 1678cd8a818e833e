"""The naive manager: any score function, deadlines, and outcomes that are no numbers."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.config.root import RunConfig
from agentrl.errors import PluginError, RewardError
from agentrl.interfaces import RewardInput
from agentrl.rewards import NaiveRewardManager, default_compute_score
from agentrl.rewards.loading import load_score_function
from agentrl.rewards.scores import gsm8k

ITEM = RewardInput("openai/gsm8k", "#### 72", "72", {"num_turns": 2})


async def test_sync_function_gets_everything_and_runs_off_the_event_loop() -> None:
    seen: dict[str, Any] = {}

    def score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
        seen.update(source=data_source, solution=solution_str, truth=ground_truth, extra=extra_info)
        seen["thread"] = threading.current_thread()
        return 0.5

    result = await NaiveRewardManager(score).score(ITEM)
    assert (result.score, result.extra) == (0.5, {})
    assert seen["thread"] is not threading.current_thread()
    assert (seen["source"], seen["solution"], seen["truth"]) == ("openai/gsm8k", "#### 72", "72")
    assert seen["extra"] == {"num_turns": 2}


async def test_async_function_and_dict() -> None:
    async def score(**kwargs: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"score": 1, "acc": True, "pred": "72"}

    result = await NaiveRewardManager(score).score(ITEM)
    assert result.score == 1.0
    assert result.extra == {"acc": True, "pred": "72"}


@pytest.mark.parametrize("value", [1, 1.0, True, np.float32(1), np.int64(1), torch.tensor(1.0), np.array(1.0)])
async def test_every_kind_of_number(value: Any) -> None:
    result = await NaiveRewardManager(lambda **_: value).score(ITEM)
    assert result.score == 1.0
    assert type(result.score) is float


@pytest.mark.parametrize("value", [None, "1", float("nan"), float("inf"), [1.0], {"acc": 1.0}, {"score": "1"}, 1j])
async def test_anything_else_is_an_error_never_a_zero(value: Any) -> None:
    with pytest.raises(RewardError):
        await NaiveRewardManager(lambda **_: value).score(ITEM)


async def test_exception_names_its_type_and_keeps_its_cause() -> None:
    def score(**kwargs: Any) -> float:
        raise KeyError("answer")

    with pytest.raises(RewardError, match="KeyError: 'answer'") as caught:
        await NaiveRewardManager(score).score(ITEM)
    assert isinstance(caught.value.__cause__, KeyError)


async def test_unknown_data_source_stays_a_plugin_error() -> None:
    with pytest.raises(PluginError, match="openai/gsm8k"):
        await NaiveRewardManager(default_compute_score).score(RewardInput("opnai/gsm8k", "", ""))


async def test_hanging_functions_time_out_and_do_not_hold_up_others() -> None:
    def hang(**kwargs: Any) -> float:
        time.sleep(60)
        return 0.0

    async def hang_async(**kwargs: Any) -> float:
        await asyncio.sleep(60)
        return 0.0

    start = time.perf_counter()
    managers = [NaiveRewardManager(hang, timeout_s=0.2), NaiveRewardManager(hang_async, timeout_s=0.2)]
    outcomes = await asyncio.gather(*(m.score(ITEM) for m in managers), return_exceptions=True)
    assert all(isinstance(o, RewardError) and "0.2 s" in str(o) for o in outcomes)
    assert (await NaiveRewardManager(default_compute_score).score(ITEM)).score == 1.0
    assert time.perf_counter() - start < 10


async def test_sync_functions_overlap() -> None:
    def score(**kwargs: Any) -> float:
        time.sleep(0.5)
        return 1.0

    manager = NaiveRewardManager(score)
    start = time.perf_counter()
    await asyncio.gather(*(manager.score(ITEM) for _ in range(20)))
    assert time.perf_counter() - start < 8


def test_verls_mark_of_a_module_is_understood() -> None:
    section = {"path": "pkg://agentrl.rewards.scores.gsm8k", "name": "extract_answer"}
    config = RunConfig.model_validate({"custom_reward_function": section})
    assert load_score_function(config) is gsm8k.extract_answer
