"""The time that a call uses itself, without the time that it waits for its turn at something scarce."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar, Token
from types import TracebackType


class OwnTime:
    """The stopwatch of one call; it stands while the call waits in a queue. Threads may share it.

    Args:
        around: of the call within which this one is made, as a trajectory is of its tools: it stands at the same times.
    """

    def __init__(self, around: OwnTime | None = None) -> None:
        self._around = around
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

    def spend(self, seconds: float) -> None:
        """Count seconds of a wait after all: in them the work itself was done."""
        with self._lock:
            self._waited_s -= seconds
        if self._around is not None:
            self._around.spend(seconds)

    @contextmanager
    def stands(self) -> Iterator[None]:
        """The watch stands within this block, and those around it do."""
        with ExitStack() as others:
            if self._around is not None:
                others.enter_context(self._around.stands())
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


class OwnTimeLimit:
    """Ends an `async with` block with a `TimeoutError`, as `asyncio.timeout` does, after so many seconds of own time.

    Args:
        seconds: the limit; None: none.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self._watch: OwnTime | None = None
        self._before: Token[OwnTime | None] | None = None

    def expired(self) -> bool:
        """Whether the limit was reached."""
        return self._timeout.expired()

    async def __aenter__(self) -> OwnTimeLimit:
        """Start the watch."""
        await self._timeout.__aenter__()
        if self._seconds is not None:
            self._watch = OwnTime(CURRENT.get())
            self._before = CURRENT.set(self._watch)
            self._look(self._seconds)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the watch.

        Raises:
            TimeoutError: the limit was reached.
        """
        if self._timer is not None:
            self._timer.cancel()
        if self._before is not None:
            CURRENT.reset(self._before)
        await self._timeout.__aexit__(kind, error, traceback)

    def _look(self, after_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(after_s, self._check)

    def _check(self) -> None:
        assert self._watch is not None
        assert self._seconds is not None
        left = self._seconds - self._watch.seconds
        if left > 0:
            self._look(max(left, 0.01))
        else:
            self._timeout.reschedule(asyncio.get_running_loop().time())
