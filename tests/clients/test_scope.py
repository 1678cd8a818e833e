"""What a worker's trajectories share is opened once, closed once, and opened again when it ended by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agentrl.clients import WorkerScope, scope


class Things:
    """Counts what is open."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.tasks: set[asyncio.Task[None] | None] = set()

    @asynccontextmanager
    async def make(self, fails: str = "", hangs: bool = False) -> AsyncIterator[int]:
        await asyncio.sleep(0)
        if fails == "open":
            raise OSError("no room")
        self.opened += 1
        entered = asyncio.current_task()
        try:
            yield self.opened
            if hangs:
                await asyncio.sleep(60)
            if fails == "close":
                raise OSError("stuck")
        finally:
            assert asyncio.current_task() is entered
            self.closed += 1


async def test_one_for_all() -> None:
    things, shared = Things(), WorkerScope()
    assert shared.peek("a") is None
    assert await asyncio.gather(*(shared.get("a", things.make) for _ in range(5))) == [1] * 5
    assert await shared.get("b", things.make) == 2
    assert shared.peek("a") == 1
    await shared.drop("a")
    await shared.drop("never")
    assert (things.closed, shared.peek("a")) == (1, None)
    assert await shared.get("a", things.make) == 3
    await shared.close()
    assert things.closed == things.opened == 3
    await shared.close()


async def test_opening_that_fails_is_tried_again() -> None:
    things, shared = Things(), WorkerScope()
    results = await asyncio.gather(
        *(shared.get("a", lambda: things.make("open")) for _ in range(2)), return_exceptions=True
    )
    assert [str(result) for result in results] == ["no room"] * 2
    assert await shared.get("a", things.make) == 1
    await shared.close()


async def test_a_caller_that_gives_up_does_not_stop_the_opening() -> None:
    things, shared = Things(), WorkerScope()
    first = asyncio.create_task(shared.get("a", things.make))
    await asyncio.sleep(0)
    first.cancel()
    assert await shared.get("a", things.make) == 1
    await shared.close()


async def test_closing_that_fails_or_hangs_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scope, "CLOSE_TIMEOUT_S", 0.05)
    things, shared = Things(), WorkerScope()
    await shared.get("slow", lambda: things.make(hangs=True))
    await shared.get("bad", lambda: things.make("close"))
    await shared.close()
    assert things.closed == 2
    assert "slow did not close within 0.05 s" in caplog.text
    assert "bad ended: OSError: stuck" in caplog.text
