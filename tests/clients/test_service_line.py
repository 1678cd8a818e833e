"""The line in front of a busy service, and whose time the wait is."""

from __future__ import annotations

import asyncio
import time

import pytest

from agentrl.clients.service_line import ServiceLine, Stalled, line_of
from agentrl.errors import ToolServiceError
from agentrl.own_time import CURRENT, OwnTime, OwnTimeLimit, queueing
from agentrl.rollout.guarded_call import anything, guarded_call


class Busy:
    """A service with a few places that refuses everybody else at once."""

    def __init__(self, places: int) -> None:
        self.places, self.running, self.refused = places, 0, 0

    async def serve(self) -> bool:
        if self.running == self.places:
            self.refused += 1
            await asyncio.sleep(0)
            return False
        self.running += 1
        await asyncio.sleep(0.005)
        self.running -= 1
        return True


async def test_everybody_is_served_in_the_order_of_coming() -> None:
    line, service, order = ServiceLine(), Busy(4), list[int]()

    async def request(number: int) -> None:
        ticket = line.ticket()
        while True:
            await line.enter(ticket)
            if await service.serve():
                order.append(number)
                line.answered()
                return
            line.refused(0.0, 0.001, 0.01)

    await asyncio.gather(*map(request, range(200)))
    assert sorted(order) == list(range(200))
    assert max(abs(place - number) for place, number in enumerate(order)) < 40
    assert service.refused < 400


async def test_one_that_gives_up_keeps_no_place() -> None:
    line = ServiceLine()
    await line.enter(line.ticket())
    line.refused(30.0, 1.0, 30.0)
    waiting = [asyncio.create_task(line.enter(line.ticket())) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    line._open_at = 0.0
    line._send()
    await waiting[1]
    assert not waiting[2].done()
    line.answered()
    await waiting[2]
    line.failed()
    assert line._in_flight == 0


async def test_a_line_that_does_not_move_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.clients.service_line.STALLED_S", -1.0)
    line = ServiceLine()
    tickets = [line.ticket(), line.ticket()]
    line._limit = 1
    await line.enter(tickets[0])
    other = asyncio.create_task(line.enter(tickets[1]))
    await asyncio.sleep(0)
    with pytest.raises(Stalled):
        line.refused(1.0, 1.0, 1.0)
    with pytest.raises(Stalled):
        await other


async def test_lines_are_shared_by_address_and_kind() -> None:
    assert line_of("http://a", "") is line_of("http://a", "")
    assert line_of("http://a", "") is not line_of("http://a", "sessions")


async def wait_in_line(seconds: float) -> str:
    with queueing():
        await asyncio.sleep(seconds)
    return "served"


async def test_a_wait_counts_against_no_limit_around_it() -> None:
    async with OwnTimeLimit(0.1) as limit:
        call = guarded_call("tool 't'", wait_in_line, (0.4,), timeout_s=0.1, expect=lambda _, result: str(result))
        assert await call == "served"
    assert not limit.expired()
    assert CURRENT.get() is None


async def test_work_counts() -> None:
    with pytest.raises(ToolServiceError, match=r"took longer than 0\.1 s"):
        await guarded_call("tool 't'", asyncio.sleep, (5,), timeout_s=0.1, expect=anything)
    limit = OwnTimeLimit(0.05)

    async def work() -> None:
        async with limit:
            await wait_in_line(0.1)
            await asyncio.sleep(5)

    with pytest.raises(TimeoutError):
        await work()
    assert limit.expired()
    async with OwnTimeLimit(None) as none:
        await asyncio.sleep(0)
    assert not none.expired()


def test_work_within_a_wait_counts_everywhere() -> None:
    trajectory = OwnTime()
    tool = OwnTime(trajectory)
    with tool.stands():
        time.sleep(0.5)
        tool.spend(10)
    for watch in (tool, trajectory):
        assert 10 <= watch.seconds < 10.4
