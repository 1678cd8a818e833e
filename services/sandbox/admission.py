"""Decides who runs next: a bounded queue, fair between clients, which tells clients when to retry if it is full."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


class Busy(Exception):
    """Nothing was started: the queue is full, or the wait was too long.

    Attributes:
        retry_after_s: when to try again.
    """

    def __init__(self, reason: str, retry_after_s: int) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class Admission:
    """Places for runs. A free one goes to the client with the fewest runs, among equals to the one that waited longest.

    How many requests a client has waiting does not matter. If the queue is full, a new request replaces the last
    request of the client with the longest queue, unless that is its own client.

    Args:
        places: runs at the same time.
        queue: requests that may wait.
        queue_s: seconds that one may wait.
    """

    def __init__(self, places: int, queue: int, queue_s: float) -> None:
        self.running = 0
        self._places, self._queue, self._queue_s = places, queue, queue_s
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._runs: Counter[str] = Counter()
        self._average_s = 0.1

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return sum(map(len, self._waiting.values()))

    @property
    def is_full(self) -> bool:
        """A request that comes now could be refused."""
        return self.waiting >= self._queue

    @asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[None]:
        """Wait for a place and hold it.

        Raises:
            Busy: no place is available.
        """
        await self._enter(client)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            yield
        finally:
            self._average_s += 0.1 * (loop.time() - began - self._average_s)
            self._give_up(client)

    def spare(self, client: str) -> SparePlaces:
        """Places that a client may take beside the one it holds, as long as nobody waits for them."""
        return SparePlaces(self, client)

    def take_spare(self, client: str) -> bool:
        """Take a place that nobody waits for, if there is one."""
        if self.running >= self._places or self._waiting:
            return False
        self._take(client)
        return True

    def give_back(self, client: str) -> None:
        """Return a place of `take_spare`."""
        self._give_up(client)

    async def _enter(self, client: str) -> None:
        if self.running < self._places and not self._waiting:
            self._take(client)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._join(client, turn)
        try:
            async with asyncio.timeout(self._queue_s):
                await turn
        except BaseException as error:
            self._leave(client, turn)
            if isinstance(error, TimeoutError):
                raise self._busy(f"no place became free within {self._queue_s:g} s") from None
            raise

    def _join(self, client: str, turn: asyncio.Future[None]) -> None:
        if self.is_full:
            # Queues of 5 and 3: a request of the second client displaces the first one's last, and they are 4 and
            # 4. At 4 and 3 it would only swap the two clients, so the new request is refused.
            longest = max(self._waiting, key=lambda name: len(self._waiting[name]), default=client)
            own = len(self._waiting.get(client, ()))
            if len(self._waiting.get(longest, ())) <= own + 1:
                raise self._busy(f"{self.waiting} requests are already waiting")
            displaced = self._waiting[longest].pop()
            if not displaced.done():  # its wait may have ended just now
                displaced.set_exception(self._busy("the queue is full, and this client has the most requests in it"))
        self._waiting.setdefault(client, deque()).append(turn)

    def _leave(self, client: str, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self._give_up(client)  # the place came in the moment of giving up
            return
        queue = self._waiting.get(client)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[client]

    def _take(self, client: str) -> None:
        self.running += 1
        self._runs[client] += 1

    def _give_up(self, client: str) -> None:
        self.running -= 1
        self._runs[client] -= 1
        if not self._runs[client]:
            del self._runs[client]
        self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting and self.running < self._places:
            # `_waiting` is in the order of the last turns, and `min` takes the first of equals.
            client = min(self._waiting, key=lambda name: self._runs[name])
            queue = self._waiting[client]
            turn = queue.popleft()
            if queue:
                self._waiting.move_to_end(client)
            else:
                del self._waiting[client]
            if not turn.done():
                self._take(client)
                turn.set_result(None)

    def _busy(self, reason: str) -> Busy:
        expected_s = self._average_s * (self.waiting + 1) / self._places
        return Busy(reason, max(1, min(30, math.ceil(expected_s))))


@dataclass(frozen=True, slots=True)
class SparePlaces:
    """Places that one client may take beside the one it holds."""

    admission: Admission
    client: str

    def take(self) -> bool:
        """Take one that nobody waits for, if there is one."""
        return self.admission.take_spare(self.client)

    def give_back(self) -> None:
        """Return one."""
        self.admission.give_back(self.client)
