"""A call's own time: waiting for its turn does not count, whatever waits."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from agentrl.errors import RewardError
from agentrl.interfaces import RewardInput
from agentrl.own_time import OwnTime, queueing
from agentrl.rewards import NaiveRewardManager, score_call

ITEM = RewardInput("my/own", "", "")


async def test_waiting_for_a_thread_is_not_the_functions_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_call, "MAX_THREADS", 1)

    def score(**_: Any) -> float:
        time.sleep(0.4)
        return 1.0

    manager = NaiveRewardManager(score, timeout_s=2.0)
    results = await asyncio.gather(*(manager.score(ITEM) for _ in range(8)))
    assert [result.score for result in results] == [1.0] * 8


async def test_a_function_that_hangs_gives_its_thread_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_call, "MAX_THREADS", 1)
    ended = threading.Event()

    def score(**_: Any) -> float:
        if not ended.is_set():
            ended.set()
            time.sleep(30)
        return 1.0

    manager = NaiveRewardManager(score, timeout_s=1.0)
    hung, other = await asyncio.gather(manager.score(ITEM), manager.score(ITEM), return_exceptions=True)
    assert str(hung) == "the score function took over 1 s (reward_model.timeout_s)"
    assert getattr(other, "score", None) == 1.0


async def test_a_queue_of_the_functions_own_does_not_count() -> None:
    device = threading.Lock()

    def score(**_: Any) -> float:
        with queueing():
            device.acquire()
        try:
            time.sleep(0.4)
        finally:
            device.release()
        return 1.0

    manager = NaiveRewardManager(score, timeout_s=2.0)
    results = await asyncio.gather(*(manager.score(ITEM) for _ in range(8)))
    assert [result.score for result in results] == [1.0] * 8


async def test_the_same_in_an_async_function() -> None:
    device = asyncio.Semaphore(1)

    async def score(**_: Any) -> float:
        with queueing():
            await device.acquire()
        try:
            await asyncio.sleep(0.4)
        finally:
            device.release()
        return 1.0

    manager = NaiveRewardManager(score, timeout_s=2.0)
    results = await asyncio.gather(*(manager.score(ITEM) for _ in range(8)))
    assert [result.score for result in results] == [1.0] * 8


async def test_work_counts_and_a_queue_that_never_moves_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(**_: Any) -> float:
        with queueing():
            await asyncio.sleep(0.01)
        await asyncio.sleep(60)
        return 1.0

    with pytest.raises(RewardError, match=r"took over 0\.3 s"):
        await NaiveRewardManager(work, timeout_s=0.3).score(ITEM)

    async def stuck(**_: Any) -> float:
        with queueing():
            await asyncio.sleep(60)
        return 1.0

    monkeypatch.setattr(score_call, "MAX_WAIT_S", 0.2)
    with pytest.raises(RewardError, match=r"waited over 0\.2 s for its turn"):
        await NaiveRewardManager(stuck, timeout_s=0.1).score(ITEM)


async def test_a_call_that_is_given_up_is_told() -> None:
    seen: list[OwnTime] = []

    async def score(**_: Any) -> float:
        with queueing() as watch:
            seen.append(watch)
            await asyncio.sleep(60)
        return 1.0

    task = asyncio.create_task(NaiveRewardManager(score, timeout_s=5.0).score(ITEM))
    while not seen:
        await asyncio.sleep(0.01)
    assert not seen[0].abandoned
    task.cancel()
    await asyncio.wait([task])
    assert seen[0].abandoned


def test_outside_of_a_score_function_queueing_does_nothing() -> None:
    with queueing() as watch:
        assert not watch.abandoned
