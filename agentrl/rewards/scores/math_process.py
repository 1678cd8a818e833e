"""Compares mathematical answers with the math-verify library in its own process.

The library's time limits are alarms, which work only in a main thread, and its computations may take very long. The
process is a plain child that reads requests from its input: a `multiprocessing` one would import the caller's main
module, and so run a plain script a second time.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading

from agentrl.errors import RewardError

COMPARE_TIMEOUT_S = 5
HARD_TIMEOUT_S = 30.0
"""For computations that the alarm does not interrupt."""
START_TIMEOUT_S = 120.0
"""Long, because the library imports a computer algebra system."""
_TRIES = 2
_READY = b"ready\n"
_ANSWERS = (b"no\n", b"yes\n")
_MAIN = "import sys; sys.path[:] = {path!r}; import agentrl.rewards.scores.math_process as m; m.serve_comparisons()"


class Comparer:
    """Asks one process, which starts at the first comparison, ends with its owner, and is replaced if it dies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)
        os.register_at_fork(after_in_child=self._forget)  # the process belongs to the parent

    def equal(self, answer: str, gold: str) -> bool:
        """Whether two answers are equal. A comparison that its alarm cannot stop counts as no; the process is killed.

        Raises:
            RewardError: the process cannot start, or died twice; its error output says why.
        """
        # reply: yes or no; empty after `HARD_TIMEOUT_S`, which is a no; None when the process died, which may have been
        # by chance (memory), so a new one tries once more.
        with self._lock:
            for _ in range(_TRIES):
                child = self._child = self._child or _start()
                reply = _ask(child, [answer, gold])
                if reply not in _ANSWERS:
                    self.stop()
                if reply is not None:
                    return reply == _ANSWERS[True]
        raise RewardError(f"the process that compares answers died on {answer[:200]!r} and {gold[:200]!r}")

    def stop(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            _end(child)

    def _forget(self) -> None:
        self._lock, self._child = threading.Lock(), None


def serve_comparisons() -> None:
    """Runs in the process: answer questions until the owner ends."""
    from math_verify import parse, verify

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # other prints must not mix with the replies: send them to standard error
    replies.write(_READY)
    for line in sys.stdin:
        answer, gold = json.loads(line)
        parsed = [parse(f"${text}$", parsing_timeout=COMPARE_TIMEOUT_S) for text in (gold, answer)]
        replies.write(_ANSWERS[bool(all(parsed) and verify(*parsed, timeout_seconds=COMPARE_TIMEOUT_S))])


def _start() -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-c", _MAIN.format(path=sys.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    if _read(child, START_TIMEOUT_S) != _READY:
        _end(child)
        raise RewardError("the process that compares answers cannot start: see its error output")
    return child


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


def _ask(child: subprocess.Popen[bytes], question: list[str]) -> bytes | None:
    """The reply; None if the process is dead, empty if it gave none in time."""
    assert child.stdin is not None
    try:
        child.stdin.write(json.dumps(question).encode() + b"\n")
        child.stdin.flush()
    except OSError:
        return None
    return _read(child, HARD_TIMEOUT_S)


def _read(child: subprocess.Popen[bytes], timeout_s: float) -> bytes | None:
    assert child.stdout is not None
    poll = select.poll()  # `select` refuses file numbers above 1023, which a worker with many connections has
    poll.register(child.stdout, select.POLLIN)
    if not poll.poll(timeout_s * 1000):
        return b""
    return child.stdout.readline() or None
