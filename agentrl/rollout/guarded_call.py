"""The one place that calls a method of a user's tool, interaction or loop while a trajectory runs.

Whatever the method does, only its own trajectory ends, with an error that names the plug-in and the method:

=================================  ============================================================================
the method                         what the caller gets
=================================  ============================================================================
returns what is expected           the result
returns something else             `ToolServiceError`: tool 'search': execute returned 7, wanted a ToolResponse
raises one of agentrl's errors     that error
raises anything else               `ToolServiceError`: tool 'search': execute raised KeyError: 'x'
ends the process (`sys.exit`)      the same: ... raised SystemExit: 3
raises what is for the event loop  the same: ... raised KeyboardInterrupt
awaits what was cancelled          the same: ... raised CancelledError
takes too long                     `ToolServiceError`: tool 'search': execute took longer than 60 s
continues after being cancelled    the same, and the method is abandoned after `GRACE_S`
=================================  ============================================================================
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from agentrl.errors import AgentRLError, InfrastructureError, ToolServiceError, repr_of, text_of
from agentrl.observability.said_once import say_once
from agentrl.own_time import CURRENT, OwnTime
from agentrl.plugins.functions import call
from agentrl.plugins.waiting import has_ended
from agentrl.reported import number_of
from agentrl.rollout.service_gate import ServiceGate

logger = logging.getLogger(__name__)

T = TypeVar("T")
GRACE_S = 1.0
"""How long a method that was cancelled may take to clean up."""
LOOP_GRACE_S = 3.0
"""The same for a loop, which may itself be waiting for the clean-up of its current call."""
RELEASE_TIMEOUT_S = 10.0
"""How long a plug-in may take to release its resources."""
_NO_KWARGS: Mapping[str, Any] = MappingProxyType({})


async def guarded_call(
    who: str,
    method: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = _NO_KWARGS,
    *,
    timeout_s: float | None,
    expect: Callable[[str, Any], T],
    gate: ServiceGate | None = None,
    answers: bool = False,
    wrap: bool = True,
) -> T:
    """Await `method(*args, **kwargs)` of a plug-in; a method that is not async runs in a thread.

    Args:
        who: the plug-in, as in error messages and as the name of its service in the gate: "tool 'search'".
        method: its method.
        args: of the call.
        kwargs: of the call.
        timeout_s: deadline, without waits for a turn (see `own_time`); None: the caller has one and cancels.
        expect: gets a name for the result ("tool 'search': execute returned") and the result; returns it checked, or
            raises `ToolServiceError`.
        gate: is told about failures that may pass: a hang, an infrastructure error, an `OSError`. A `KeyError` is a
            bug, not an outage.
        answers: a result shows that the service is up, and the gate is told. False for `create`, which most plug-ins
            inherit and which calls no service.
        wrap: False for a loop: its exceptions pass unchanged, because the worker around it is itself a boundary. What
            is no `Exception` is wrapped all the same: it would end the event loop.

    Raises:
        AgentRLError: see the table above; any error that is not agentrl's own becomes a `ToolServiceError`.
    """
    what, started = f"{who}: {getattr(method, '__name__', method)}", time.monotonic()
    result, error = await _outcome(what, method, args, kwargs, timeout_s, GRACE_S if wrap else LOOP_GRACE_S)
    if error is None:
        if answers and gate is not None:
            gate.succeeded(who)
        return expect(f"{what} returned", result)
    failure = _named(what, error) if wrap or not isinstance(error, Exception) else error
    if gate is not None and isinstance(error, InfrastructureError | OSError):
        gate.failed(who, started, str(failure))
    try:
        raise failure
    finally:
        # A failure knows this frame and the method's by its traceback. If they or their task knew it too, all would
        # stay, with the trajectory's tokens, until the garbage collector looks at old objects.
        del error, failure


async def _outcome(
    what: str,
    method: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    timeout_s: float | None,
    grace_s: float,
) -> tuple[Any, BaseException | None]:
    """Await a method in a task of its own: its result, or the error that it ended with or that says it took too long.

    Raises:
        CancelledError: this call is cancelled.
    """
    outcome: list[tuple[Any, BaseException | None]] = []

    async def keep_outcome() -> None:
        # Errors are kept as values. A SystemExit that leaves a task would end the event loop and all trajectories with
        # it; a CancelledError that leaves it could not be told from one meant for this call.
        if watch is not None:
            CURRENT.set(watch)
        try:
            outcome.append((await call(method, *args, **kwargs), None))
        except BaseException as error:
            outcome.append((None, error))

    watch = None if timeout_s is None else OwnTime(CURRENT.get())
    task = asyncio.create_task(keep_outcome())
    try:
        if not (await has_ended(task, timeout_s) or await _ends_in_own_time(task, watch, timeout_s)):
            return None, ToolServiceError(f"{what} took longer than {timeout_s:g} s")
        task.result()  # raises if somebody cancelled it before it began
        return outcome[0]
    finally:  # after the deadline, or when we are cancelled ourselves
        if not task.done():
            await _end(task, what, grace_s)
        outcome.clear()


async def _ends_in_own_time(task: asyncio.Task[Any], watch: OwnTime | None, timeout_s: float | None) -> bool:
    in_time = False
    while not in_time and watch is not None and timeout_s is not None and watch.seconds < timeout_s:
        # A limit of 60 s, and 50 s in line at a busy service: the next look is 50 s later.
        in_time = await has_ended(task, max(timeout_s - watch.seconds, 0.01))
    return in_time


async def _end(task: asyncio.Task[Any], what: str, grace_s: float) -> None:
    """Cancel a call that is still running, and abandon it if it does not stop.

    `asyncio.timeout` would wait for it without limit: a method that catches everything in a retry loop would hold its
    trajectory, and so the step, indefinitely.
    """
    task.cancel()
    if not await has_ended(task, grace_s):
        late = f"{what} is still running {grace_s:g} s after it was cancelled: abandoned"
        say_once(logger, logging.WARNING, late)


def _named(what: str, error: BaseException) -> BaseException:
    """The error for the caller: agentrl's own unchanged, any other with the name of its plug-in."""
    if isinstance(error, AgentRLError):
        return error
    say_once(logger, logging.ERROR, f"{what} raised {type(error).__name__}", error=error)
    failure = ToolServiceError(f"{what} raised {type(error).__name__}: {text_of(error)}")
    failure.__cause__ = error
    return failure


async def guarded_release(who: str, method: Callable[..., Any], kwargs: Mapping[str, Any] = _NO_KWARGS) -> None:
    """Let a plug-in release its resources. A failure is only logged: the trajectory is over, its tokens are good."""
    try:
        await guarded_call(who, method, (), kwargs, timeout_s=RELEASE_TIMEOUT_S, expect=anything)
    except AgentRLError as error:
        say_once(logger, logging.WARNING, str(error))


def anything(what: str, result: Any) -> None:
    """The `expect` of methods whose result nobody reads."""


def number(what: str, result: Any) -> float:
    """The `expect` of rewards and scores.

    Raises:
        ToolServiceError: the result is not a number.
    """
    found = number_of(result)
    if found is None:
        raise ToolServiceError(f"{what} {repr_of(result)}, wanted a number")
    return found
