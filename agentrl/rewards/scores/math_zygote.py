"""The process behind `math_process`: it has computer algebra loaded, and forks a child for every comparison.

A child has limits of its own in processor time and memory, and ends after its one comparison; what it does can neither
reach the next one nor outlive this process. Requests are lines of JSON, `[number, answer, gold, cpu_s]` (the limit in
seconds of processor time); a reply is a line of the number and one of the verdicts below.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from typing import BinaryIO

MEMORY_BYTES = 512 * 2**20
"""Memory of one comparison, on top of what this process has."""
WALL_S = 120.0
"""For a child that gets no processor time."""
READY = b"ready\n"
YES, NO, UNDECIDED, DIED = "yes", "no", "undecided", "died"
_CODES = {10: YES, 11: NO}
_OUT_OF_TIME = {signal.SIGPROF, signal.SIGXCPU}
_LOOK_S = 2.0
_SET_PDEATHSIG = 1
_USUAL = (
    r"\frac{2}{4}+\sqrt{8}-x^{2}",
    r"3\pi(x+1)(y-2)",
    r"\frac{a_{1}}{b}\cdot e^{-x}",
    r"\sin(x)+\cos{2x}+\log_{2} 8+\ln(3)",
    r"2\sqrt[3]{5}-7!+\binom{5}{2}",
    r"|x-3|=y",
)


def serve_comparisons() -> None:
    """Answer requests from the standard input until its owner ends."""
    from agentrl.rewards.scores.math_compare import same_answer
    from agentrl.rewards.scores.math_expression import equal_expressions, read_expression

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner
    logging.disable()
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # other prints must not mix with the replies: send them to standard error
    for usual in _USUAL:  # the parser learns as it reads: 40 ms for its first fraction, 2 ms for the second
        equal_expressions(usual, usual + "+1")
        read_expression(usual)
    gc.collect()
    gc.freeze()
    replies.write(READY)

    def compare(answer: str, gold: str) -> bool:
        return bool(same_answer(answer, gold, equal_expressions))

    _Children(compare, replies).answer_requests()


class _Children:
    def __init__(self, compare: Callable[[str, str], bool], replies: BinaryIO) -> None:
        self._compare, self._replies = compare, replies
        self._running: dict[int, tuple[int, float]] = {}
        self._owner = os.getppid()

    def answer_requests(self) -> None:
        wake, waker = os.pipe()
        for end in (wake, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        rest = b""
        # A fork of the owner may hold the other end of the pipe open: so look at the owner too.
        while os.getppid() == self._owner:
            ready, _, _ = select.select([0, wake], [], [], _LOOK_S)
            if wake in ready:
                os.read(wake, 4096)
            if 0 in ready:
                data = os.read(0, 65536)
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._start(*json.loads(line))
            self._reap()
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)

    def _start(self, number: int, answer: str, gold: str, cpu_s: float) -> None:
        owner = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # no memory, or too many processes
            self._reply(number, DIED)
            return
        if pid == 0:
            _in_child(lambda: self._compare(answer, gold), cpu_s, owner)
        self._running[pid] = number, time.monotonic()

    def _reap(self) -> None:
        for pid, (number, began) in list(self._running.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._running[pid]
                self._reply(number, _verdict(os.waitstatus_to_exitcode(status)))
            elif time.monotonic() - began > WALL_S:
                os.kill(pid, signal.SIGKILL)

    def _reply(self, number: int, verdict: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the owner has just ended
            self._replies.write(f"{number} {verdict}\n".encode())


def _verdict(code: int) -> str:
    """Of an exit code; a signal is a negative one."""
    if code >= 0:
        return _CODES.get(code, UNDECIDED)
    return UNDECIDED if -code in _OUT_OF_TIME else DIED


def _in_child(compare: Callable[[], bool], cpu_s: float, owner: int) -> None:
    """Compare and end; whatever is raised, memory errors too, leaves the answer undecided."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        die_with(owner)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _limit_memory()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as stream:
            stream.write("1000")  # if memory runs out, this process goes first
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # ends the process even inside one long multiplication
        code = 10 if compare() else 11
    finally:
        os._exit(code)


def die_with(owner: int) -> None:
    """Have the kernel end this process when its parent, the owner, ends, however that ends."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner:
        os._exit(1)


def _limit_memory() -> None:
    with contextlib.suppress(OSError, ValueError):  # not Linux, or a lower limit already
        with open("/proc/self/statm") as stream:
            used = int(stream.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
