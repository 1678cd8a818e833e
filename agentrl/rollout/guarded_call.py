"""The one place that calls a method of a user's tool, interaction or loop while a trajectory runs.

Whatever the method does, one trajectory ends with an error that names the plug-in and the method, and no other is
touched:

=================================  ============================================================================
the method                         what the caller gets
=================================  ============================================================================
returns what is expected           the result
returns something else             `ToolServiceError`: tool 'search': execute returned 7, wanted a ToolResponse
raises one of agentrl's errors     that error
raises anything else               `ToolServiceError`: tool 'search': execute raised KeyError: 'x'
ends the process (`sys.exit`)      the same: ... raised SystemExit: 3
awaits what was cancelled          the same: ... raised CancelledError
takes too long                     `ToolServiceError`: tool 'search': execute took longer than 60 s
does not even stop when cancelled  the same, and the method is left behind after `GRACE_S`
=================================  ============================================================================
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from agentrl.errors import AgentRLError, InfrastructureError, ToolServiceError
from agentrl.rollout.service_gate import ServiceGate

logger = logging.getLogger(__name__)

T = TypeVar("T")
GRACE_S = 1.0
"""How long a method that was cancelled may take to clean up."""
LOOP_GRACE_S = 3.0
"""The same for a loop, which itself waits that long for the call that it is making."""
RELEASE_TIMEOUT_S = 10.0
"""How long a plug-in may take to give back what it holds."""
_NO_KWARGS: Mapping[str, Any] = MappingProxyType({})


async def guarded_call(
    who: str,
    method: Callable[..., Awaitable[Any]],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = _NO_KWARGS,
    *,
    timeout_s: float | None,
    expect: Callable[[str, Any], T],
    gate: ServiceGate | None = None,
    answers: bool = False,
    wrap: bool = True,
) -> T:
    """Await `method(*args, **kwargs)` of a plug-in.

    Args:
        who: the plug-in, as errors name it and as the gate knows its service: "tool 'search'".
        method: its method.
        args: of the call.
        kwargs: of the call.
        timeout_s: deadline; None: the caller has one and cancels.
        expect: gets what to call the result ("tool 'search': execute returned") and the result; gives it checked, or
            raises `ToolServiceError`.
        gate: is told of failures that waiting may mend: a hang, an error of infrastructure, an `OSError`. A `KeyError`
            is a bug, and no outage.
        answers: a result shows that the service is up, and the gate is told. Not so for `create`, which most plug-ins
            inherit and which asks nobody.
        wrap: False for a loop: its errors pass as they were raised, because the worker around it is a boundary itself.

    Raises:
        AgentRLError: see the table above; what is not agentrl's own is a `ToolServiceError`.
    """
    what, started = f"{who}: {getattr(method, '__name__', method)}", time.monotonic()

    async def outcome() -> tuple[Any, BaseException | None]:
        # Errors come out as values: a SystemExit that leaves a task ends the event loop, and all trajectories with it;
        # a CancelledError that leaves it could not be told from one that is meant for us.
        try:
            return await method(*args, **kwargs), None
        except BaseException as error:
            return None, error

    task = asyncio.create_task(outcome())
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    finally:  # after the deadline, or when we are cancelled ourselves
        await _end(task, what, GRACE_S if wrap else LOOP_GRACE_S)
    result, error = task.result() if done else (None, ToolServiceError(f"{what} took longer than {timeout_s:g} s"))
    if error is None:
        if answers and gate is not None:
            gate.succeeded(who)
        return expect(f"{what} returned", result)
    failure = _named(what, error) if wrap else error
    if gate is not None and isinstance(error, InfrastructureError | OSError):
        gate.failed(who, started, str(failure))
    raise failure


async def _end(task: asyncio.Task[Any], what: str, grace_s: float) -> None:
    """Cancel a call that still runs, and leave it behind when it goes on.

    `asyncio.timeout` would wait for it for as long as it likes: a method that catches everything in a retry loop would
    hold its trajectory, and so the step, for ever.
    """
    if task.done():
        return
    task.cancel()
    await asyncio.wait({task}, timeout=grace_s)
    if not task.done():
        logger.warning("%s goes on although it was cancelled: left behind", what)


def _named(what: str, error: BaseException) -> BaseException:
    """The error as the caller gets it: agentrl's own as it is, any other with the name of whose it is."""
    if isinstance(error, AgentRLError):
        return error
    logger.error("%s raised", what, exc_info=error)
    failure = ToolServiceError(f"{what} raised {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


async def guarded_release(
    who: str, method: Callable[..., Awaitable[Any]], kwargs: Mapping[str, Any] = _NO_KWARGS
) -> None:
    """Let a plug-in give back what it holds. A failure is logged: the trajectory is over, and its tokens are good."""
    try:
        await guarded_call(who, method, (), kwargs, timeout_s=RELEASE_TIMEOUT_S, expect=anything)
    except AgentRLError as error:
        logger.warning("%s", error)


def anything(what: str, result: Any) -> None:
    """Expected of methods whose result nobody reads."""


def number(what: str, result: Any) -> float:
    """Expected of rewards and scores.

    Raises:
        ToolServiceError: it is none.
    """
    try:
        return float(result)
    except (TypeError, ValueError):
        raise ToolServiceError(f"{what} {result!r}, wanted a number") from None
