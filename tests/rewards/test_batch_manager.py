"""The batch manager: lists in, one value per trajectory out, and one bad trajectory fails alone."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.config.root import RunConfig
from agentrl.errors import PluginError, RewardError
from agentrl.interfaces import RewardInput, RewardResult
from agentrl.rewards import BatchRewardManager
from agentrl.rewards.loading import load_reward_manager


def item(number: int) -> RewardInput:
    return RewardInput(f"source{number}", f"solution{number}", number, {"n": number})


async def score_all(manager: BatchRewardManager, count: int) -> list[Any]:
    return await asyncio.gather(*(manager.score(item(i)) for i in range(count)), return_exceptions=True)


async def test_trajectories_that_end_together_share_a_call() -> None:
    calls: list[dict[str, Any]] = []

    def score(**lists: Any) -> list[Any]:
        assert threading.current_thread() is not threading.main_thread()
        calls.append(lists)
        return [{"score": n, "acc": n > 1} if n else 0.5 for n in lists["ground_truths"]]

    manager = BatchRewardManager(score)
    results = await score_all(manager, 3)
    assert results == [RewardResult(0.5), RewardResult(1.0, {"acc": False}), RewardResult(2.0, {"acc": True})]
    assert calls == [
        {
            "data_sources": ["source0", "source1", "source2"],
            "solution_strs": ["solution0", "solution1", "solution2"],
            "ground_truths": [0, 1, 2],
            "extra_infos": [{"n": 0}, {"n": 1}, {"n": 2}],
        }
    ]
    assert (await manager.score(item(7))).score == 7
    assert len(calls) == 2


async def test_async_functions_and_arrays() -> None:
    async def score(ground_truths: list[int], scale: float, **_: Any) -> Any:
        await asyncio.sleep(0)
        return np.array(ground_truths) * scale

    results = await score_all(BatchRewardManager(functools.partial(score, scale=0.5)), 4)
    assert [result.score for result in results] == [0.0, 0.5, 1.0, 1.5]


async def test_one_bad_trajectory_fails_alone() -> None:
    def score(ground_truths: list[int], **_: Any) -> list[float]:
        if 5 in ground_truths:
            raise ZeroDivisionError("five")
        return [float("nan") if n == 2 else float(n) for n in ground_truths]

    results = await score_all(BatchRewardManager(score), 16)
    bad = {i: str(result) for i, result in enumerate(results) if isinstance(result, RewardError)}
    assert set(bad) == {2, 5}
    place = f"tests/rewards/test_batch_manager.py:{score.__code__.co_firstlineno + 2}"
    assert bad[5] == f"the score function raised ZeroDivisionError: five ({place})"
    assert [r.score for i, r in enumerate(results) if i not in bad] == [i for i in range(16) if i not in bad]


@pytest.mark.parametrize("values", [[1.0], {"score": 1.0}, "12", None, 3.0])
async def test_anything_but_a_value_per_trajectory_is_an_error(values: Any) -> None:
    results = await score_all(BatchRewardManager(lambda **_: values), 2)
    assert all(isinstance(result, RewardError) and "wanted a list of 2 values" in str(result) for result in results)


async def test_a_call_that_hangs_ends_at_its_deadline_and_later_ones_are_scored() -> None:
    def score(ground_truths: list[int], **_: Any) -> list[float]:
        if 0 in ground_truths:
            time.sleep(5)
        return [1.0] * len(ground_truths)

    manager = BatchRewardManager(score, timeout_s=0.2)
    (result,) = await score_all(manager, 1)
    assert str(result) == "the score function took over 0.2 s (reward_model.timeout_s)"
    assert (await manager.score(item(1))).score == 1.0


async def test_a_function_that_awaits_what_was_cancelled_fails_only_its_own_trajectory() -> None:
    async def score(ground_truths: list[int], **_: Any) -> list[float]:
        if 1 in ground_truths:
            raise asyncio.CancelledError
        return [1.0] * len(ground_truths)

    async with asyncio.timeout(5):  # the others would wait without end
        first, second, third = await score_all(BatchRewardManager(score), 3)
    assert first.score == third.score == 1.0
    assert isinstance(second, RewardError)
    assert str(second) == "the score function raised CancelledError: "


async def test_a_trajectory_that_is_cancelled_is_not_scored() -> None:
    seen: list[int] = []

    def score(ground_truths: list[int], **_: Any) -> list[float]:
        seen.extend(ground_truths)
        return [1.0] * len(ground_truths)

    manager = BatchRewardManager(score)
    gone = asyncio.create_task(manager.score(item(0)))
    other = asyncio.create_task(manager.score(item(1)))
    await asyncio.sleep(0)
    gone.cancel()
    assert (await other).score == 1.0
    assert seen == [1]


def test_it_is_chosen_by_name_and_needs_a_function(tmp_path: Path) -> None:
    config = RunConfig.model_validate({"reward_model": {"reward_manager": "batch"}})
    with pytest.raises(PluginError, match=r"batch.*custom_reward_function\.path"):
        load_reward_manager(config)
    file = tmp_path / "score.py"
    file.write_text("def compute_score(data_sources, **_):\n    return [1.0] * len(data_sources)\n")
    config.custom_reward_function.path = str(file)
    assert isinstance(load_reward_manager(config), BatchRewardManager)
