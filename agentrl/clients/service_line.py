"""Lines of requests in front of busy services.

A service that answers 429 has begun nothing: that is "not yet", not a failure. Who was refused waits here, first come,
first served, and those who come later wait behind. As many requests are sent at the same time as the service took
before it refused one, and one more after each round of answers::

    50 requests, a service with 4 places that keeps others for 8 s:
     0 s   50 sent
     8 s   46 refused: 4 are in flight, and 4 is the limit
    10 s   4 answered, 4 + 1 sent
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
from weakref import WeakKeyDictionary

STALLED_S = 600.0
"""A service that refuses requests and has answered nobody for so long does not move at all."""
_DOUBLINGS = 4
"""Of the pause, if the service does not say when to come again: a place may become free at any moment."""


class Stalled(Exception):
    """The service has answered nobody for too long."""


class ServiceLine:
    """The line in front of one service. Use it in one event loop."""

    def __init__(self) -> None:
        self._in_flight = 0
        self._limit = math.inf
        self._refusals = 0
        """In a row while nothing was in flight."""
        self._open_at = 0.0
        self._moved_at = 0.0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._tickets = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def ticket(self) -> int:
        """A place in the order; a request keeps it until it is answered."""
        if not self._in_flight and not self._waiting:
            self._moved_at = _now()
        return next(self._tickets)

    async def enter(self, ticket: int) -> None:
        """Wait until the request may be sent; then one of `answered`, `failed` and `refused` has to follow.

        Raises:
            Stalled: nothing has moved for too long.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (ticket, turn))
        self._send()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.failed()  # its turn came in the moment of giving up
            raise

    def answered(self) -> None:
        """The service has done what was asked."""
        self._moved_at, self._refusals, self._open_at = _now(), 0, 0.0
        self._limit += 1 / self._limit
        self.failed()

    def failed(self) -> None:
        """The service gave no answer, or none of use."""
        self._in_flight -= 1
        self._send()

    def refused(self, wait_s: float, backoff_s: float, max_backoff_s: float) -> None:
        """The service is busy.

        Args:
            wait_s: after which it wants to be asked again; 0: it did not say.
            backoff_s: the first pause where it did not say; doubled while nothing is in flight.
            max_backoff_s: the longest pause.
        """
        self._in_flight -= 1
        self._limit = max(1, self._in_flight)
        pause_s = wait_s * random.uniform(1.0, 1.5)
        if not wait_s:
            pause_s = backoff_s * 2 ** min(self._refusals, _DOUBLINGS) * random.uniform(0.5, 1.5)
        if not self._in_flight:
            self._refusals += 1
        self._open_at = max(self._open_at, _now() + min(pause_s, max_backoff_s))
        if _now() - self._moved_at > STALLED_S:
            for _, turn in self._waiting:
                if not turn.done():
                    turn.set_exception(Stalled())
            raise Stalled
        self._send()

    def _send(self) -> None:
        """Let those go whose turn it is; when the service is to be left alone for a while, look again after it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting and self._in_flight < math.floor(self._limit if self._limit < math.inf else 1e9):
            if self._waiting[0][1].done():  # it gave up
                heapq.heappop(self._waiting)
            elif (left_s := self._open_at - _now()) > 0:
                self._timer = asyncio.get_running_loop().call_later(left_s, self._send)
                return
            else:
                self._in_flight += 1
                heapq.heappop(self._waiting)[1].set_result(None)


_LINES: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], ServiceLine]] = WeakKeyDictionary()


def line_of(service: str, kind: str) -> ServiceLine:
    """The line that all clients of a service in the running event loop share.

    Args:
        service: its address.
        kind: what is scarce; a service may have several lines.
    """
    lines = _LINES.setdefault(asyncio.get_running_loop(), {})
    return lines.setdefault((service, kind), ServiceLine())


def _now() -> float:
    return asyncio.get_running_loop().time()
