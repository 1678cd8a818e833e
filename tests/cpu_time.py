"""Processor time of a piece of work."""

from __future__ import annotations

import time
from collections.abc import Callable


def takes_less(work: Callable[[], object], seconds: float, tries: int = 3) -> bool:
    """Whether one of some tries does: a pass of the garbage collector over a test process can take most of a second."""
    return any(_once(work) < seconds for _ in range(tries))


def _once(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
