"""Holds back new trajectories while a service that they need is down (a circuit breaker, one per service and worker).

A service is an engine, a tool, an interaction or the service behind a score. It counts as down after a number of
failures in a row, where a failure counts only if the service has answered nobody since the failed call began: single
calls that hang while others work are not an outage. While it is down, trajectories that need it wait instead of failing
one by one. After a backoff one of them may try; its success releases all others, its failure doubles the backoff. A
trajectory that waited too long fails with the cause, so a step always ends.

With 3 failures and a backoff of 1 s::

    0 s   the third failure in a row: down
    1 s   one trajectory tries and fails
    3 s   one tries again and succeeds: up, all others start
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.errors import ServiceDownError

logger = logging.getLogger(__name__)

ENGINE = "the engine"
JUDGE = "the judge"
MAX_BACKOFF_S = 30.0


def tool_service(name: str) -> str:
    """The service behind a tool."""
    return f"tool '{name}'"


def interaction_service(name: str) -> str:
    """The service behind an interaction."""
    return f"interaction '{name}'"


def score_service(data_source: str) -> str:
    """The service behind the score of a row, for example a sandbox."""
    return f"the score of '{data_source}'"


@dataclass(slots=True)
class _Service:
    name: str
    backoff_s: float
    failures: int = 0
    """Number of failures in a row."""
    alive_at: float = -math.inf
    """When it last answered."""
    down_since: float | None = None
    cause: str = ""
    try_at: float = 0.0
    """When one trajectory may try the service again."""
    tried_by: object | None = None
    """The trajectory that is trying."""
    tried_since: float = 0.0


class ServiceGate:
    """What a worker knows about the services of its trajectories. Use it in one event loop.

    Args:
        failures: a service is down after this many failures in a row; 0: never.
        backoff_s: pause before the first try; doubled after each failed try.
        wait_s: how long trajectories wait for a service that is down.
        engine_wait_s: the same for the engines.
    """

    def __init__(self, failures: int, backoff_s: float, wait_s: float, engine_wait_s: float) -> None:
        self._limit = failures
        self._backoff_s = backoff_s
        self._wait_s, self._engine_wait_s = wait_s, engine_wait_s
        self._services: dict[str, _Service] = {}
        self._changed = asyncio.Event()

    def succeeded(self, service: str) -> None:
        """Report that a service answered."""
        state = self._services.get(service)
        if state is None:
            state = self._services[service] = _Service(service, self._backoff_s)
        state.alive_at = time.monotonic()
        state.failures = 0
        if state.down_since is not None:
            logger.warning("%s answers again after %.1f s", service, state.alive_at - state.down_since)
            self._services[service] = _Service(service, self._backoff_s, alive_at=state.alive_at)
            self._notify()

    def failed(self, service: str, started: float, cause: str) -> None:
        """Report a call that failed for a reason other than a mistake of the model.

        Args:
            service: the called service.
            started: when the call began, on `time.monotonic`'s clock.
            cause: what happened.
        """
        state = self._services.setdefault(service, _Service(service, self._backoff_s))
        # A call that began at 10 s and fails at 70 s does not count if another one was answered at 65 s: the service is
        # up, and only that call is lost. Three calls that hang from 10 s on, without any answer since, are an outage if
        # `failures` is 3.
        if started < state.alive_at:
            return
        now = time.monotonic()
        state.failures += 1
        state.cause = cause
        if state.down_since is None:
            if self._limit and state.failures >= self._limit:
                logger.warning("%s is down: %d failures in a row, the last: %s", service, state.failures, cause)
                state.down_since, state.try_at = now, now + state.backoff_s
        # While it is down, only the trajectory that tries it counts, not those that were under way when it went down
        # and fail one after the other: with a backoff of 1 s they would have doubled it to 30 s in no time.
        elif state.tried_by is not None and started >= state.tried_since:
            state.backoff_s = min(2 * state.backoff_s, MAX_BACKOFF_S)
            state.tried_by, state.try_at = None, now + state.backoff_s
            self._notify()

    async def wait(self, services: Sequence[str]) -> float:
        """Return once `enter` may succeed.

        Returns:
            Seconds spent waiting; exactly 0 if all services are up.

        Raises:
            ServiceDownError: a service stayed down for too long.
        """
        began: float | None = None
        while (state := self._first_closed(services)) is not None:
            now = time.monotonic()
            began = now if began is None else began
            longest = self._engine_wait_s if state.name == ENGINE else self._wait_s
            ends = (state.down_since or now) + longest
            if now >= ends:
                raise ServiceDownError(f"not started, {state.name} is down: {state.cause}")
            # Nobody tries: wake up when the next try is due. Somebody does: `_notify` wakes us with its outcome.
            due = min(ends, state.try_at) if state.tried_by is None else ends
            try:
                async with asyncio.timeout(due - now):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return 0.0 if began is None else time.monotonic() - began

    def enter(self, services: Sequence[str], who: object) -> bool:
        """Whether a trajectory may start now. If a service that it needs is down, this trajectory is the one to try."""
        if self._first_closed(services) is not None:
            return False
        for state in self._known(services):
            if state.down_since is not None:
                state.tried_by, state.tried_since = who, time.monotonic()
        return True

    def leave(self, who: object) -> None:
        """Report that a trajectory ended. If it should have tried a service but never called it, the next one tries."""
        for state in self._services.values():
            if state.tried_by is who:
                state.tried_by, state.try_at = None, time.monotonic()
                self._notify()

    def forget(self) -> None:
        """Assume that every service is up: a new step begins, and services may have been restarted."""
        self._services.clear()
        self._notify()

    def _known(self, services: Sequence[str]) -> list[_Service]:
        return [self._services[name] for name in services if name in self._services]

    def _first_closed(self, services: Sequence[str]) -> _Service | None:
        now = time.monotonic()
        for state in self._known(services):
            if state.down_since is not None and (state.tried_by is not None or now < state.try_at):
                return state
        return None

    def _notify(self) -> None:
        """Wake all waiting trajectories.

        They wait for the event that they saw, so that one is set and left to them; later ones get a new event.
        """
        self._changed.set()
        self._changed = asyncio.Event()
