"""Blocking score functions: threads are used again, and one that hangs holds nobody up."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentrl.plugins.threads import call_in_thread


def test_one_after_the_other_shares_a_thread() -> None:
    async def run() -> list[int]:
        return [await call_in_thread(threading.get_ident) for _ in range(20)]

    used = asyncio.run(run())
    assert threading.get_ident() not in used
    assert len(set(used)) <= 2, "a thread may still be on its way back when the next call comes"


def test_hanging_functions_leave_room_for_others() -> None:
    release = threading.Event()

    async def run() -> list[int]:
        stuck = [asyncio.ensure_future(call_in_thread(release.wait)) for _ in range(8)]
        answers = await asyncio.wait_for(asyncio.gather(*(call_in_thread(lambda: 42) for _ in range(8))), 10)
        release.set()
        await asyncio.gather(*stuck)
        return answers

    assert asyncio.run(run()) == [42] * 8


def test_an_error_reaches_the_caller_and_the_thread_lives_on() -> None:
    async def run() -> int:
        with pytest.raises(ZeroDivisionError):
            await call_in_thread(lambda: 1 // 0)
        answer: int = await call_in_thread(lambda: 7)
        return answer

    assert asyncio.run(run()) == 7


def test_a_loop_that_ended_meanwhile_is_left_alone() -> None:
    release, ended = threading.Event(), threading.Event()

    def slow() -> None:
        release.wait()
        ended.set()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call_in_thread(slow), 0.05)

    asyncio.run(give_up())
    release.set()
    assert ended.wait(10)
    assert asyncio.run(call_in_thread(lambda: 1)) == 1
