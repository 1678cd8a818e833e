"""The prime manager: a pool of processes with a deadline for each call, which nothing outlives."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from agentrl.config.root import RunConfig
from agentrl.errors import InfrastructureError, PluginError, RewardError, ToolServiceError
from agentrl.interfaces import RewardInput, RewardManager, RewardResult
from agentrl.rewards import NaiveRewardManager
from agentrl.rewards.loading import load_reward_manager
from agentrl.rewards.prime import PrimeRewardManager

SCORE = """
import asyncio
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from agentrl.errors import ToolServiceError
from agentrl.own_time import queueing

calls = 0


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def compute_score(data_source, solution_str, ground_truth, extra_info=None, factor=1):
    global calls
    calls += 1
    kind, _, value = solution_str.partition(" ")
    if kind == "sleeps":
        time.sleep(600)
    elif kind == "computes":
        re.match(r"(a+)+b", "a" * 64)  # one call in C that no signal handler of Python interrupts
    elif kind == "starts":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        pathlib.Path(value).write_text(str(child.pid))
        time.sleep(600)
    elif kind == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif kind == "dies_once" and not os.path.exists(value):
        pathlib.Path(value).touch()
        os._exit(3)
    elif kind == "raises":
        raise KeyError(value)
    elif kind == "odd":
        raise Odd("one", "two")
    elif kind == "exits":
        sys.exit(7)
    elif kind == "service":
        raise ToolServiceError("the sandbox is down")
    elif kind == "waits":
        with queueing():
            time.sleep(float(value))
    elif kind == "alarm":
        signal.signal(signal.SIGALRM, lambda *_: None)
    elif kind == "none":
        return None
    return {"score": factor * len(extra_info), "calls": calls, "pid": os.getpid()}


async def async_score(**row):
    await asyncio.sleep(0)
    return compute_score(**row)
"""


def item(text: str = "", **extra: Any) -> RewardInput:
    return RewardInput("test", text, {"target": ["x"]}, extra)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "score.py").write_text(SCORE)
    return tmp_path / "score.py"


def manager(file: Path, timeout_s: float = 60.0, **section: Any) -> RewardManager:
    config = RunConfig.model_validate(
        {
            "custom_reward_function": {"path": str(file), **section},
            "reward_model": {"reward_manager": "prime", "timeout_s": timeout_s, "num_processes": 2},
        }
    )
    return load_reward_manager(config)


def children() -> set[int]:
    """Processes of score functions that run."""
    found = set()
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it ends in this moment
            found |= {child.pid} if "score_server" in " ".join(child.cmdline()) else set()
    return found


async def test_a_function_runs_in_few_processes_that_stay(file: Path) -> None:
    own = manager(file, reward_kwargs={"factor": 2})
    assert type(own) is PrimeRewardManager
    results = await asyncio.gather(*(own.score(item("", a=1, b=np.float32(2))) for _ in range(12)))
    assert {result.score for result in results} == {4.0}
    pids = {result.extra["pid"] for result in results}
    assert len(pids) <= 2
    assert os.getpid() not in pids
    assert max(result.extra["calls"] for result in results) > 1, "a process keeps what it has loaded"
    assert results[0].metrics == {"timed_out": 0.0}
    assert results[0].extra["timed_out"] is False


async def test_a_call_that_takes_too_long_is_killed_and_scores_0_with_its_reason(file: Path) -> None:
    own = manager(file, timeout_s=4.0)
    texts = ["sleeps", "", "computes", "", ""]
    slow, one, stuck, *others = await asyncio.gather(*(own.score(item(text, a=1)) for text in texts))
    reason = "the score function took over 4 s (reward_model.timeout_s) and was killed"
    for result in (slow, stuck):
        assert result == RewardResult(
            0.0, {"timed_out": True, "reason": reason}, service_used=False, metrics={"timed_out": 1.0}
        )
    assert {other.score for other in (one, *others)} == {1.0}, "others are not affected, and the killed are replaced"
    assert all(child.status() != psutil.STATUS_ZOMBIE for child in psutil.Process().children())


async def test_what_a_killed_function_has_started_dies_with_it(file: Path, tmp_path: Path) -> None:
    own = manager(file, timeout_s=4.0)
    await own.score(item())  # the start of a process is nobody's time
    assert (await own.score(item(f"starts {tmp_path / 'pid'}"))).extra["timed_out"]
    pid = int((tmp_path / "pid").read_text())
    for _ in range(500):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("the grandchild still runs")


async def test_waiting_is_not_the_functions_time(file: Path) -> None:
    own = manager(file, timeout_s=2.5)
    results = await asyncio.gather(*(own.score(item("waits 3")) for _ in range(3)))
    assert [result.extra["timed_out"] for result in results] == [False] * 3


async def test_what_fails_is_never_a_zero(file: Path) -> None:
    own = manager(file)
    for text, message in (
        ("raises x", r"the score function raised KeyError: 'x' \(.*score.py:41\)"),
        ("odd", r"the score function raised Odd: one \(.*score.py"),
        ("exits", "the score function raised SystemExit: 7"),
        ("none", "the score function returned None .*wanted a number"),
        ("dies", "the process of the score function died 2 times, the last time by signal SIGSEGV"),
    ):
        with pytest.raises(RewardError, match=message):
            await own.score(item(text))
    with pytest.raises(ToolServiceError, match="the sandbox is down"):
        await own.score(item("service"))
    assert (await own.score(item("", a=1))).score == 1.0


async def test_a_process_that_died_by_chance_is_replaced(file: Path, tmp_path: Path) -> None:
    assert (await manager(file).score(item(f"dies_once {tmp_path / 'mark'}", a=1))).score == 1.0


async def test_async_functions_and_signals(file: Path) -> None:
    own = manager(file, name="async_score")
    results = [await own.score(item("alarm", a=1)) for _ in range(2)]
    assert {result.score for result in results} == {1.0}, "signals need the main thread"


async def test_its_processes_end_with_it(file: Path) -> None:
    own = manager(file)
    result = await own.score(item("", a=1))
    assert result.extra["pid"] in children()
    del own
    gc.collect()
    assert result.extra["pid"] not in {child.pid for child in psutil.Process().children()}


async def test_a_caller_that_gives_up_frees_its_process(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    before, own = children(), manager(file, timeout_s=61)
    await own.score(item())
    task = asyncio.create_task(own.score(item("sleeps")))
    await asyncio.sleep(0.3)
    task.cancel()
    began = time.monotonic()
    while children() - before:
        assert time.monotonic() - began < 30
        await asyncio.sleep(0.05)
    assert (await own.score(item("", a=1))).score == 1.0
    assert "took over" not in caplog.text


async def test_a_wait_that_never_ends_is_not_the_functions_fault(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.rewards.score_process.MAX_WAIT_S", 0.1)
    own = manager(file)
    with pytest.raises(InfrastructureError, match=r"the score function waited over 0\.1 s in queues"):
        await own.score(item("waits 600"))
    assert (await own.score(item("", a=1))).score == 1.0


def module_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    return 0.25


def scaled(factor: float, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    return 0.25 * factor


async def test_it_can_be_built_around_a_function() -> None:
    for score_fn, score in ((module_score, 0.25), (functools.partial(scaled, 2.0), 0.5)):
        result = await PrimeRewardManager(score_fn).score(item())
        assert result == RewardResult(score, {"timed_out": False}, metrics={"timed_out": 0.0})


def test_a_function_that_no_process_finds_is_refused() -> None:
    def inner(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
        return 0.0

    with pytest.raises(
        PluginError, match=r"prime calls the score function in other processes, which cannot find .*inn"
    ):
        PrimeRewardManager(inner)


async def test_a_row_that_cannot_be_sent() -> None:
    with pytest.raises(RewardError, match="a row cannot be sent to the process of the score function"):
        await PrimeRewardManager(module_score).score(item("", what=lambda: 0))


def test_built_in_functions_have_limits_of_their_own() -> None:
    config = RunConfig()
    config.reward_model.reward_manager = "prime"
    assert type(load_reward_manager(config)) is NaiveRewardManager
