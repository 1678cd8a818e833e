"""Runs Python's cyclic garbage collector less often while trajectories run.

A batch creates millions of objects, few of them in cycles. After a number of new objects Python scans every object of
the process, including the libraries': a third of a second, many times per batch, in which no trajectory moves.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (10_000, 10, 10)
"""See `gc.set_threshold`; Python's default begins with 700, or 2,000 since version 3.13."""

_lock = threading.Lock()
_users = 0
_usual: tuple[int, int, int] | None = None
"""What to restore; None: nothing was changed."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect less often inside the `with`, and only newer objects; of overlapping uses the last to end restores.

    A process with its own settings (collection off or rarer, frozen objects) keeps them.
    """
    global _users, _usual
    with _lock:
        _users += 1
        if _users == 1 and gc.isenabled() and 0 < gc.get_threshold()[0] < THRESHOLDS[0] and not gc.get_freeze_count():
            _usual = gc.get_threshold()
            gc.freeze()
            gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _usual is not None:
                gc.set_threshold(*_usual)
                gc.unfreeze()
                _usual = None
