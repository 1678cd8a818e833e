"""Who runs next, and who is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrl.services.sandbox.admission import Admission, Busy
from agentrl.services.sandbox.options import SandboxOptions
from agentrl.services.sandbox.sessions import Sessions


async def hold(admission: Admission, client: str, order: list[str], until: asyncio.Event) -> None:
    async with admission.place(client):
        order.append(client)
        await until.wait()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_clients_take_turns() -> None:
    admission, order, until = Admission(1, 10, 60), list[str](), asyncio.Event()
    runs = [asyncio.create_task(hold(admission, client, order, until)) for client in "aaaabbc"]
    await settle()
    assert (admission.running, admission.waiting) == (1, 6)
    until.set()
    await asyncio.gather(*runs)
    assert "".join(order) == "aabcaba"
    assert (admission.running, admission.waiting) == (0, 0)


async def test_a_thousand_requests_of_one_client_do_not_hold_up_another() -> None:
    admission, order = Admission(2, 256, 60), list[str]()
    until = {name: asyncio.Event() for name in "ab"}
    greedy = [asyncio.create_task(hold(admission, "a", order, until["a"])) for _ in range(1000)]
    await settle()
    other = asyncio.create_task(hold(admission, "b", order, until["b"]))
    await settle()
    assert (order, admission.waiting) == (["a", "a"], 256)
    until["a"].set()
    await settle()
    assert order[2] == "b"  # the next free place
    until["b"].set()
    assert (await asyncio.gather(*greedy, other, return_exceptions=True))[-1] is None
    assert (admission.running, admission.waiting) == (0, 0)


async def test_a_free_place_goes_to_who_has_the_fewest_runs() -> None:
    admission, order = Admission(4, 10, 60), list[str]()
    ends = [asyncio.Event() for _ in "aaaa"]
    running = [asyncio.create_task(hold(admission, "a", order, end)) for end in ends]
    await settle()
    end = asyncio.Event()
    waiting = [asyncio.create_task(hold(admission, client, order, end)) for client in "aabb"]
    await settle()
    for each in ends[:2]:
        each.set()
        await settle()
    assert order[4:] == ["b", "b"]  # in turns alone the second place would be a's, which still has two
    for each in (*ends, end):
        each.set()
    await asyncio.gather(*running, *waiting)


async def test_who_has_most_of_a_full_queue_makes_room() -> None:
    admission, order, until = Admission(1, 3, 60), list[str](), asyncio.Event()
    greedy = [asyncio.create_task(hold(admission, "a", order, until)) for _ in range(4)]
    await settle()
    other = asyncio.create_task(hold(admission, "b", order, until))
    await settle()
    with pytest.raises(Busy, match="this client has the most requests"):
        await asyncio.wait_for(greedy[3], 10)
    until.set()
    await asyncio.gather(*greedy[:3], other)
    assert order == ["a", "a", "b", "a"]


async def test_a_wait_that_ends_as_somebody_takes_its_place() -> None:
    admission, order, until = Admission(1, 3, 60), list[str](), asyncio.Event()
    greedy = [asyncio.create_task(hold(admission, "a", order, until)) for _ in range(4)]
    await settle()
    other = asyncio.create_task(hold(admission, "b", order, until))  # runs before the one that is cancelled is awake
    greedy[3].cancel()
    await settle()
    assert greedy[3].done()
    until.set()
    await asyncio.gather(*greedy[:3], other)
    assert order.count("b") == 1
    assert (admission.running, admission.waiting) == (0, 0)


async def test_sessions_that_are_being_opened_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once half of the sessions are open, no client gets more than its share, however fast it asks."""
    none: Any = None
    sessions, up = Sessions(none, none, SandboxOptions(sessions=20)), asyncio.Event()

    async def open_slowly(_: object) -> None:
        await up.wait()

    monkeypatch.setattr("agentrl.services.sandbox.sessions.SandboxSession.open", open_slowly)
    asked = [asyncio.create_task(sessions.open(client, none, {})) for client in "b" + 19 * "a"]
    await settle()
    up.set()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(outcome, str) for outcome in outcomes[1:]) == 10
    assert all(isinstance(outcome, str | Busy) for outcome in outcomes)
    assert isinstance(await sessions.open("b", none, {}), str)
    await sessions.close()
