"""Whatever a plug-in's method does, its caller gets a result or an error that names it, and gets it in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentrl.errors import AgentRLError, EngineError, PluginError, ToolServiceError
from agentrl.rollout import guarded_call as module
from agentrl.rollout.guarded_call import anything, guarded_call, guarded_release, number
from agentrl.rollout.service_gate import ServiceGate

WHO = "tool 'search'"


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.05)


class Gate(ServiceGate):
    """Remembers what it is told."""

    def __init__(self) -> None:
        super().__init__(1, 1.0, 1.0, 1.0)
        self.told: list[str] = []

    def succeeded(self, service: str) -> None:
        self.told.append(f"{service} answered")

    def failed(self, service: str, started: float, cause: str) -> None:
        assert started <= time.monotonic()
        self.told.append(f"{service}: {cause}")


class Stubborn:
    """Catches everything in a retry loop, until the test lets it go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.cancelled = 0

    async def execute(self) -> str:
        while not self.go.is_set():
            try:
                await self.go.wait()
            except BaseException:
                self.cancelled += 1
        return "at last"


def within(timeout_s: float | None, method: Callable[..., Awaitable[Any]], **options: Any) -> Awaitable[Any]:
    return guarded_call(WHO, method, timeout_s=timeout_s, **{"expect": lambda what, result: result, **options})


async def test_arguments_result_and_success_pass() -> None:
    async def execute(word: str, *, times: int) -> str:
        await asyncio.sleep(0)
        return word * times

    gate = Gate()
    for timeout_s in (5, None):
        call = guarded_call(WHO, execute, ("a",), {"times": 3}, timeout_s=timeout_s, expect=anything, gate=gate)
        assert await call is None
    assert gate.told == []
    assert await within(5, lambda: execute("a", times=2), gate=gate, answers=True) == "aa"
    assert gate.told == [f"{WHO} answered"]


@pytest.mark.parametrize(
    ("error", "says", "is_outage"),
    [
        (KeyError("x"), "raised KeyError: 'x'", False),
        (OSError("no route"), "raised OSError: no route", True),
        (TimeoutError("own"), "raised TimeoutError: own", True),
        (SystemExit(3), "raised SystemExit: 3", False),
        (KeyboardInterrupt(), "raised KeyboardInterrupt: ", False),
        (asyncio.CancelledError(), "raised CancelledError: ", False),
        (StopAsyncIteration(), "raised StopAsyncIteration: ", False),
    ],
)
async def test_any_error_names_the_plugin_and_its_method(error: BaseException, says: str, is_outage: bool) -> None:
    async def execute() -> None:
        await asyncio.sleep(0)
        raise error

    gate = Gate()
    with pytest.raises(ToolServiceError) as caught:
        await within(5, execute, gate=gate)
    assert str(caught.value) == f"{WHO}: execute {says}"
    assert caught.value.__cause__ is error
    assert gate.told == ([f"{WHO}: {caught.value}"] if is_outage else [])
    with pytest.raises(type(error) if isinstance(error, Exception) else ToolServiceError) as raw:
        await within(5, execute, wrap=False)
    assert error in (raw.value, raw.value.__cause__)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@pytest.mark.parametrize(("error", "is_outage"), [(EngineError("503"), True), (PluginError("bad row"), False)])
async def test_errors_of_agentrl_stay_what_they_are(error: AgentRLError, is_outage: bool) -> None:
    async def execute() -> None:
        raise error

    gate = Gate()
    with pytest.raises(type(error)) as caught:
        await within(5, execute, gate=gate)
    assert caught.value is error
    assert gate.told == ([f"{WHO}: {error}"] if is_outage else [])


async def test_a_call_that_does_not_even_begin_is_an_error_of_the_plugin() -> None:
    async def execute(arguments: dict[str, Any]) -> None:
        pass

    with pytest.raises(ToolServiceError, match=r"tool 'search': execute raised TypeError: .*missing 1 required"):
        await within(5, execute)


async def test_a_result_of_another_type() -> None:
    async def calc_reward() -> str:
        return "high"

    gate = Gate()
    with pytest.raises(ToolServiceError, match=r"^tool 'search': calc_reward returned 'high', wanted a number$"):
        await within(5, calc_reward, expect=number, gate=gate)
    assert gate.told == []


async def test_a_method_that_cleans_up_is_waited_for() -> None:
    cleaned = []

    async def execute() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    gate = Gate()
    with pytest.raises(ToolServiceError, match=r"^tool 'search': execute took longer than 0\.01 s$"):
        await within(0.01, execute, gate=gate)
    assert cleaned == [True]
    assert gate.told == [f"{WHO}: {WHO}: execute took longer than 0.01 s"]


async def test_one_that_swallows_cancellation_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    stubborn, started = Stubborn(), time.perf_counter()
    with pytest.raises(ToolServiceError, match="took longer"):
        await within(0.01, stubborn.execute)
    assert time.perf_counter() - started < 5
    assert stubborn.cancelled == 1
    assert "tool 'search': execute is still running" in caplog.text
    stubborn.go.set()
    await asyncio.sleep(0.01)


async def test_cancelling_the_caller_ends_it_too() -> None:
    stubborn = Stubborn()
    caller = asyncio.create_task(asyncio.wait_for(within(None, stubborn.execute), 60))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(caller, 5)
    assert stubborn.cancelled == 1
    stubborn.go.set()
    await asyncio.sleep(0.01)


async def test_a_release_that_fails_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def release(why: str) -> None:
        raise OSError(why)

    await guarded_release(WHO, release, {"why": "no disk"})
    assert "tool 'search': release raised OSError: no disk" in caplog.text


async def test_an_error_that_repeats_is_said_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def execute(n: int) -> None:
        raise KeyError(n)

    for n in range(120):
        with pytest.raises(ToolServiceError, match=f"KeyError: {n}"):
            await within(1.0, execute, args=(n,))
    said = "tool 'search': execute raised KeyError"
    told = [record.getMessage() for record in caplog.records]
    assert told == [said, f"{said} (10 times so far)", f"{said} (100 times so far)"]
    assert [record.exc_info is not None for record in caplog.records] == [True, False, False]
