"""Deadlines hold for coroutines that swallow their cancellation, and change nothing for all others."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from agentrl.rollout import deadline
from agentrl.rollout.deadline import within


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "GRACE_S", 0.05)


class Stubborn:
    """Catches everything in a retry loop, until the test lets it go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.cancelled = 0

    async def __call__(self) -> str:
        while not self.go.is_set():
            try:
                await self.go.wait()
            except BaseException:
                self.cancelled += 1
        return "at last"


async def test_a_result_and_an_error_pass() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    async def fail() -> None:
        raise KeyError("x")

    assert await within(5, answer()) == 42
    assert await within(None, answer()) == 42
    with pytest.raises(KeyError):
        await within(5, fail())


async def test_a_coroutine_that_cleans_up_is_waited_for() -> None:
    cleaned = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    with pytest.raises(TimeoutError):
        await within(0.01, work())
    assert cleaned == [True]


async def test_one_that_swallows_cancellation_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    stubborn, started = Stubborn(), time.perf_counter()
    with pytest.raises(TimeoutError):
        await within(0.01, stubborn())
    assert time.perf_counter() - started < 5
    assert stubborn.cancelled == 1
    assert "left behind" in caplog.text
    stubborn.go.set()
    await asyncio.sleep(0.01)


async def test_cancelling_the_caller_ends_it_too() -> None:
    stubborn = Stubborn()
    caller = asyncio.create_task(within(None, stubborn()))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(caller, 5)
    assert stubborn.cancelled == 1
    stubborn.go.set()
    await asyncio.sleep(0.01)


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), StopAsyncIteration()])
async def test_errors_that_end_tasks_or_loops_stay_with_the_caller(error: BaseException) -> None:
    async def work() -> Any:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(type(error)):
        await within(5, work())
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
