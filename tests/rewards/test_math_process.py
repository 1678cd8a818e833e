"""Answers that take hours, all memory, or the process with them; and what waits beside them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agentrl.config import RunConfig
from agentrl.errors import RewardError
from agentrl.interfaces import RewardInput
from agentrl.own_time import CURRENT, OwnTime
from agentrl.rewards import NaiveRewardManager, default_compute_score
from agentrl.rewards.scores import math, math_process
from agentrl.rewards.scores.math_process import Comparer

SLOW = r"\binom{10^{9}}{5\cdot 10^{8}+%d}"
"""Computed while it is read, so nothing but the limit ends it."""


@pytest.fixture
def comparer() -> Iterator[Comparer]:
    comparer = Comparer(cpu_s=0.3)
    yield comparer
    comparer.stop()


@pytest.fixture(scope="module")
def module_comparer() -> Iterator[Comparer]:
    comparer = Comparer(cpu_s=0.5)
    yield comparer
    comparer.stop()


@pytest.fixture
def shared(module_comparer: Comparer, monkeypatch: pytest.MonkeyPatch) -> Comparer:
    """The score function uses one with a short limit, whose helper starts once for all tests."""
    monkeypatch.setattr(math, "_comparer", lambda: module_comparer)
    return module_comparer


def item(answer: str, gold: str = r"\frac{1}{2}") -> RewardInput:
    return RewardInput("lighteval/MATH", rf"\boxed{{{answer}}}", gold)


async def scores(*answers: str) -> list[float]:
    manager = NaiveRewardManager(default_compute_score, RunConfig().reward_model.timeout_s)
    return [result.score for result in await asyncio.gather(*(manager.score(item(answer)) for answer in answers))]


@pytest.mark.usefixtures("shared")
async def test_towers_beside_right_answers() -> None:
    towers = [f"9^{{9^{{9^{{{number}}}}}}}" for number in range(1, 15)]
    assert await scores(*towers, *[r"\frac{2}{4}"] * 6) == [0.0] * 14 + [1.0] * 6


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.usefixtures("shared")
async def test_answers_that_nothing_but_the_limit_ends(first: bool) -> None:
    """Their time in the queue, far over `timeout_s`, is not theirs; no right answer is lost, in either order."""
    slow = [SLOW % (number + 100 * first) for number in range(8)]
    right = [rf"\frac{{\sqrt{{{number**2}}}}}{{{2 * number}}}" for number in range(2, 22)]
    manager = NaiveRewardManager(default_compute_score, timeout_s=2.0)
    answers = [*slow, *right] if first else [*right, *slow]
    results = await asyncio.gather(*(manager.score(item(answer)) for answer in answers))
    wanted = [0.0] * 8 + [1.0] * 20
    assert [result.score for result in results] == (wanted if first else wanted[::-1])


BOMBS = (
    "(" * 1900 + "x" + ")" * 1900,
    "{" * 1900 + "}" * 1900,
    r"\sqrt{" * 300 + "2" + "}" * 300,
    "(10^{9})!",
    "9!!!!!!!!!",
    "99999999999999999999^{999999}",
    r"\sum_{i=1}^{10^{10}} i^2",
    r"x^{x^{x^{x^{9^9}}}}",
    "1+" * 1500 + "x",
    "7" * 100_000,
)


@pytest.mark.usefixtures("shared")
async def test_bombs_score_zero() -> None:
    assert await scores(*BOMBS, r"\frac{\sqrt{4}}{4}") == [0.0] * len(BOMBS) + [1.0]


def test_a_comparison_has_a_memory_limit(tmp_path: Path) -> None:
    """A child that takes memory without end is undecided, and does not take the machine's."""
    program = (
        "import agentrl.rewards.scores.math_zygote as m, os\n"
        "def hoard():\n    held = []\n    while True: held.append(bytes(10**7))\n"
        "pid = os.fork()\n"
        "if pid == 0: m._in_child(hoard, 100.0, os.getppid())\n"
        "print(m._verdict(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "undecided\n", done.stderr


def test_the_rows_fault_is_said(module_comparer: Comparer) -> None:
    with pytest.raises(RewardError, match=r"the ground truth .*binom.* takes too much time or memory"):
        module_comparer.equal("x+1", SLOW % 1)
    assert not module_comparer.equal(SLOW % 1, "x+1")


def test_a_helper_that_dies_is_replaced_and_never_a_wrong_answer(
    comparer: Comparer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert comparer.equal("x+1", "1+x")
    helper_process(comparer).kill()
    helper_process(comparer).wait()
    assert comparer.equal("x+2", "2+x")
    monkeypatch.setattr(math_process, "_MAIN", "print('ready', flush=True); input()")
    comparer.stop()
    with pytest.raises(RewardError, match=r"the process that compares answers died on 'x\+3' and '3\+x'"):
        comparer.equal("x+3", "3+x")
    comparer.stop()
    monkeypatch.setattr(math_process, "_MAIN", "import nothing_of_this_name")
    with pytest.raises(RewardError, match="cannot start"):
        comparer.equal("x+3", "3+x")


def helper_process(comparer: Comparer) -> subprocess.Popen[bytes]:
    assert comparer._helper is not None
    return comparer._helper._process


def test_a_child_that_is_killed_is_tried_once_more(comparer: Comparer) -> None:
    comparer._cpu_s = 100.0
    assert comparer.equal("x+1", "1+x")
    results: list[bool] = []
    asker = threading.Thread(target=lambda: results.append(comparer.equal(SLOW % 1, "x+1")))
    asker.start()
    killed = [kill_child(helper_process(comparer).pid)]
    killed.append(kill_child(helper_process(comparer).pid, killed[0]))
    asker.join(100)
    assert results == [False]
    assert len(set(killed)) == 2


def kill_child(pid: int, other_than: int = 0) -> int:
    """Wait for a child of the process, and kill it as the kernel does when memory runs out."""
    while True:
        for child in psutil.Process(pid).children():
            if child.pid != other_than and child.status() != psutil.STATUS_ZOMBIE:
                child.send_signal(signal.SIGKILL)
                return child.pid
        time.sleep(0.01)


def test_no_orphan_after_the_owner_is_killed() -> None:
    program = (
        "import threading, time, sys\n"
        "from agentrl.rewards.scores.math_process import Comparer\n"
        "c = Comparer(cpu_s=100.0); c.equal('x+1', '1+x'); print(c._helper._process.pid, flush=True)\n"
        f"threading.Thread(target=c.equal, args=({SLOW % 1!r}, 'x+1')).start()\n"
        "time.sleep(100)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        helper = psutil.Process(int(owner.stdout.readline()))
        while not (children := helper.children()):
            time.sleep(0.01)
        owner.kill()
    gone, alive = psutil.wait_procs([helper, *children], timeout=60)
    assert (len(gone), alive) == (1 + len(children), [])


def test_an_abandoned_comparison_leaves_the_queue(comparer: Comparer) -> None:
    """Nothing of a step that was given up goes on in the next one."""
    for _ in range(math_process.at_once()):
        comparer._turns.acquire()
    watch = OwnTime()
    errors: list[str] = []

    def ask() -> None:
        CURRENT.set(watch)
        try:
            comparer.equal("x+1", "1+x")
        except RewardError as error:
            errors.append(str(error))

    asker = threading.Thread(target=ask)
    asker.start()
    watch.abandoned = True
    asker.join(60)
    assert errors == ["nobody waits for this comparison any more"]
    assert comparer._helper is None


def test_equal_texts_and_numbers_start_no_process() -> None:
    program = (
        "from agentrl.rewards.scores import math\n"
        "for a, g in [('0.5', r'\\frac{1}{2}'), ('x+1', 'x + 1'), ('1,234', '1234'), ('3, 1/2', '(0.5, 3)')]:\n"
        "    math.compute_score(f'\\\\boxed{{{a}}}', g)\n"
        "import sys; print(math._comparer.cache_info().currsize, 'sympy' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "0 False\n"


def test_a_fork_of_the_owner_has_a_helper_of_its_own(module_comparer: Comparer) -> None:
    assert module_comparer.equal("x+1", "1+x")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if module_comparer._helper is None else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert module_comparer.equal("x+2", "2+x")
