"""Python's cyclic garbage collector while trajectories run.

A batch makes objects by the million, few of them in cycles. Python counts what is made and then looks through every
object of the process, the libraries' included: a third of a second, many times per batch, in which no trajectory moves.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (10_000, 10, 10)
"""See `gc.set_threshold`; Python's own begin with 700."""

_lock = threading.Lock()
_users = 0
_usual: tuple[int, int, int] | None = None
"""What to restore; None: nothing was changed."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect less often meanwhile, and only what was made since; of overlapping uses the last to end restores.

    A process that has settings of its own (collection off or rarer, frozen objects) keeps them.
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
