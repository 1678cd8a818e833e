"""The time that code takes: of the processors and by the clock, and whether it keeps within its limits.

A limit of 2 s means 2 s of processor time, of all processes together, so that a program does not fail because others
run too. By the clock the code may take `WALL_FACTOR` times as long; the time in which it waits for a processor that
others use does not count, up to `MAX_WALL_FACTOR` times the limit in all. So a program that sleeps ends after 4 s, and
one that computes on a machine with ten times more work than processors ends after 2 s of its own work, at about 20 s.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

WALL_FACTOR = 2.0
MAX_WALL_FACTOR = 20.0
_LEAST_WAIT_S = 0.02
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class RunClock:
    """Starts when it is made.

    Args:
        pids: the processes that count, now and later.
        waited_s: what `longest_wait` says of them now; 0 of those that have just started.
    """

    def __init__(self, pids: Callable[[], list[int]], waited_s: float = 0.0) -> None:
        self._pids, self._waited_s = pids, waited_s
        self._before_s = processor_seconds(pids())
        self._seen_s = 0.0
        self._began_at = time.monotonic()

    @property
    def wall_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began_at

    def cpu_s(self) -> float:
        """Processor time since the start. Processes that have ended count as far as their parents waited for them."""
        self._seen_s = max(self._seen_s, processor_seconds(self._pids()) - self._before_s)
        return self._seen_s

    def conclude(self, total_s: float) -> float:
        """Processor time of a sandbox that has ended.

        Args:
            total_s: what the kernel counted for all of its processes from their start.
        """
        return max(self._seen_s, total_s - self._before_s)

    async def watch(self, done: asyncio.Future[Any], limit_s: float) -> bool:
        """Wait until the code is done; false if it reaches a limit before."""
        left_s = await self._left_s(limit_s)
        while left_s > 0:
            if (await asyncio.wait({done}, timeout=max(left_s, _LEAST_WAIT_S)))[0]:
                return True
            left_s = await self._left_s(limit_s)
        return False

    async def _left_s(self, limit_s: float) -> float:
        """How long the code runs at least before it can have reached a limit of which it is now short."""
        wall_s, processors = self.wall_s, os.cpu_count() or 1
        # With a limit of 10 s on 2 processors the first look at the processes is after 5 s: a short run has none.
        most_cpu_s = wall_s * processors
        if most_cpu_s >= limit_s:
            most_cpu_s = await asyncio.to_thread(self.cpu_s)
        wall_left_s = WALL_FACTOR * limit_s - wall_s
        if wall_left_s <= 0:
            waited_s = await asyncio.to_thread(longest_wait, self._pids()) - self._waited_s
            wall_left_s = min(wall_left_s + max(0.0, waited_s), MAX_WALL_FACTOR * limit_s - wall_s)
        return min((limit_s - most_cpu_s) / processors, wall_left_s)


def processor_seconds(pids: list[int]) -> float:
    """Processor time of these processes and of the children that they have waited for."""
    return sum(map(_ticks, pids)) / _TICKS_PER_S


def longest_wait(pids: list[int]) -> float:
    """Seconds that one of the threads of these processes has waited for a processor, of the one that waited longest."""
    return max((wait for pid in pids for wait in _waits(pid)), default=0.0)


def _ticks(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            # "12 (a (name)) S ...": the eleventh to the fourteenth field behind the name are the times
            return sum(map(int, stream.read().rpartition(")")[2].split()[11:15]))
    except (OSError, ValueError):
        return 0


def _waits(pid: int) -> list[float]:
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as stream:
                found.append(int(stream.read().split()[1]) / 1e9)
    except (OSError, ValueError, IndexError):  # it has ended, or the kernel does not count it
        return found
    return found
