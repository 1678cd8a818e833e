"""The time that a call uses itself, without the time that it waits for its turn at something scarce."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class OwnTime:
    """The stopwatch of one call; it stands while the call waits in a queue. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._waited_s = 0.0
        self._waiting = 0
        self._since = 0.0
        self.abandoned = False
        """Whether nobody wants the result any more: then what still waits in a queue leaves it."""

    @property
    def seconds(self) -> float:
        """What the call has used of its limit."""
        return time.monotonic() - self._began - self.waited_s

    @property
    def waited_s(self) -> float:
        """How long it has waited in queues."""
        with self._lock:
            return self._waited_s + (time.monotonic() - self._since if self._waiting else 0.0)

    @contextmanager
    def stands(self) -> Iterator[None]:
        """The watch stands within this block."""
        with self._lock:
            self._waiting += 1
            if self._waiting == 1:
                self._since = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                if self._waiting == 0:
                    self._waited_s += time.monotonic() - self._since


CURRENT: ContextVar[OwnTime | None] = ContextVar("own_time", default=None)
"""The stopwatch of the call that runs here, if it has one."""


@contextmanager
def queueing() -> Iterator[OwnTime]:
    """Within this block a call waits for its turn: the time does not count against its limit.

    A score function that shares something scarce puts only the wait into it::

        with queueing():
            device.acquire()
    """
    watch = CURRENT.get() or OwnTime()
    with watch.stands():
        yield watch
