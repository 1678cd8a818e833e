"""Processor time of a piece of work."""

from __future__ import annotations

import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object], tries: int = 3) -> float:
    """The least of some tries: one pass of the garbage collector over a test process can take most of a second."""
    return min(_once(work) for _ in range(tries))


def _once(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
