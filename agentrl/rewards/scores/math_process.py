"""Compares mathematical answers in processes that can be ended: a computation may take hours, or all memory.

One helper process per owner starts at the first comparison and forks a child for each (`math_zygote`). It is a plain
child process: a `multiprocessing` one would import the caller's main module, and so run a plain script a second time.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import OrderedDict
from itertools import count

from agentrl.errors import RewardError
from agentrl.own_time import OwnTime, queueing
from agentrl.rewards.scores import math_zygote
from agentrl.rewards.scores.math_zygote import DIED, UNDECIDED, YES

CPU_S = 2.0
"""Processor time of one comparison; usual ones take hundredths of it."""
START_TIMEOUT_S = 120.0
"""Long, because the helper imports a computer algebra system."""
_TRIES = 2
_LOOK_S = 0.5
_REMEMBERED = 4096
_MAIN = "import sys; sys.path[:] = {path!r}; import agentrl.rewards.scores.math_zygote as m; m.serve_comparisons()"


def at_once() -> int:
    """Comparisons at the same time: 2 to 4, as there are processors."""
    return min(4, max(2, os.cpu_count() or 1))


class Comparer:
    """Decides answers, a few at a time. Its helper starts at the first and ends with its owner.

    Args:
        cpu_s: limit of one comparison, in processor time.
    """

    def __init__(self, cpu_s: float = CPU_S) -> None:
        self._cpu_s = cpu_s
        self._helper: _Helper | None = None
        self._reset()
        atexit.register(self.stop)
        os.register_at_fork(after_in_child=self._reset)  # the helper belongs to the parent

    def equal(self, answer: str, gold: str) -> bool:
        """Whether two answers are equal. One that is not decided within its limits is not: the model's doing.

        All of it is waiting for others: it does not count as the time of the score function that asks.

        Raises:
            RewardError: the helper cannot start or died twice, or the limits do not suffice to read the right answer.
        """
        verdict = self._decide(answer, gold)
        if verdict in (UNDECIDED, DIED) and self._decide(gold, f"({gold})+0") in (UNDECIDED, DIED):
            raise RewardError(f"the ground truth {gold[:200]!r} takes too much time or memory to be read")
        return verdict == YES

    def stop(self) -> None:
        """End the helper and its children."""
        with self._lock:
            helper, self._helper = self._helper, None
        if helper is not None:
            helper.end()

    def _reset(self) -> None:
        self._lock, self._memory = threading.Lock(), threading.Lock()
        self._turns = threading.BoundedSemaphore(at_once())
        self._helper = None
        self._known: OrderedDict[tuple[str, str], str] = OrderedDict()

    def _decide(self, answer: str, gold: str) -> str:
        """The verdict; answers of a group are often alike, so the last ones are remembered."""
        known = self._known.get((answer, gold))
        if known is not None:
            return known
        with queueing() as watch:
            verdict = self._in_turn(answer, gold, watch)
        with self._memory:
            self._known[answer, gold] = verdict
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return verdict

    def _in_turn(self, answer: str, gold: str, watch: OwnTime) -> str:
        has_turn = False
        while not has_turn and not watch.abandoned:
            has_turn = self._turns.acquire(timeout=_LOOK_S)
        if not has_turn:
            raise RewardError("nobody waits for this comparison any more")
        try:
            for _ in range(_TRIES):
                # `DIED` may have been by chance (memory), so it is tried once more.
                verdict = self._live_helper().ask(answer, gold, self._cpu_s)
                if verdict not in (DIED, None):
                    break
        finally:
            self._turns.release()
        if verdict is None:
            raise RewardError(f"the process that compares answers died on {answer[:200]!r} and {gold[:200]!r}")
        return verdict

    def _live_helper(self) -> _Helper:
        with self._lock:
            if self._helper is None or not self._helper.lives:
                self._helper = _Helper()
            return self._helper


class _Helper:
    """The helper process, and a thread that hands its replies to those that asked."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", _MAIN.format(path=sys.path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lock = threading.Lock()
        self._numbers = count()
        self._asked: dict[int, queue.SimpleQueue[str | None]] = {}
        self.lives = True
        started: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(started,), name="agentrl-math", daemon=True)
        self._reader.start()
        try:
            first = started.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            first = b""
        if first != math_zygote.READY:
            self.end()
            raise RewardError("the process that compares answers cannot start: see its error output")

    def ask(self, answer: str, gold: str, cpu_s: float) -> str | None:
        """The verdict of one comparison; None if the helper ended first."""
        reply: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with self._lock:
            if not self.lives:
                return None
            number = next(self._numbers)
            self._asked[number] = reply
            try:
                assert self._process.stdin is not None
                self._process.stdin.write(json.dumps([number, answer, gold, cpu_s]).encode() + b"\n")
                self._process.stdin.flush()
            except (OSError, ValueError):
                self.lives = False
                self._asked.pop(number)
                return None
        return reply.get()

    def end(self) -> None:
        """Kill it; its children die with it."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self, started: queue.SimpleQueue[bytes]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as replies:
            started.put(replies.readline())
            for line in replies:
                number, verdict = line.decode().split()
                with self._lock:
                    reply = self._asked.pop(int(number), None)
                if reply is not None:
                    reply.put(verdict)
        with self._lock:
            self.lives = False
            waiting, self._asked = self._asked, {}
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        for reply in waiting.values():
            reply.put(None)
        self._process.wait()
