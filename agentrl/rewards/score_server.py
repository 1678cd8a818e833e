"""The process behind `score_process`: it imports a score function and calls it, one call after the other.

It sends one reply per call, and `WAITS` and `GOES_ON` where the function waits in a queue meanwhile (`queueing()`). The
function runs in the main thread, as in a script, so it may use signals.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from agentrl.errors import AgentRLError, InfrastructureError, RewardError, UserInputError, text_of
from agentrl.own_time import CURRENT, OwnTime
from agentrl.plugins import registry
from agentrl.plugins.users_code import raised_at
from agentrl.reported import plain_values
from agentrl.rewards.naive import to_result
from agentrl.rewards.scores.math_zygote import die_with

READY, SCORED, FAILED, WAITS, GOES_ON, SPENT = "ready", "scored", "failed", "waits", "goes on", "spent"
Message = tuple[str, Any]


def serve_scores(descriptor: int, owner: int) -> None:
    """Answer calls until the owner ends, or closes its end of the connection."""
    die_with(owner)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner
    owner_end = Connection(descriptor)
    try:
        score_fn = _load(owner_end.recv_bytes())
        owner_end.send((READY, None))
        with asyncio.Runner() as runner:  # one loop for all calls: a function may keep its connections
            while True:
                arguments = owner_end.recv_bytes()
                owner_end.send_bytes(_reply(score_fn, arguments, owner_end, runner))
    except (EOFError, ConnectionError):  # the owner needs it no longer
        os._exit(0)


def _load(function: bytes) -> Callable[..., Any]:
    reference, args, kwargs = pickle.loads(function)
    score_fn: Callable[..., Any] = registry.resolve("rewards", reference)
    return functools.partial(score_fn, *args, **kwargs)


def _reply(score_fn: Callable[..., Any], arguments: bytes, owner_end: Connection, runner: asyncio.Runner) -> bytes:
    """The pickled result of a call, or its error."""
    try:
        result = to_result(_call(score_fn, arguments, owner_end, runner))
        return pickle.dumps((SCORED, replace(result, extra=plain_values(result.extra))))
    except BaseException as error:  # handed to the owner, as every executor does
        return pickle.dumps((FAILED, _as_ours(error, score_fn)))


def _call(score_fn: Callable[..., Any], arguments: bytes, owner_end: Connection, runner: asyncio.Runner) -> Any:
    CURRENT.set(_ToldTime(owner_end))
    outcome = score_fn(**pickle.loads(arguments))
    return runner.run(_awaited(outcome)) if inspect.isawaitable(outcome) else outcome


async def _awaited(outcome: Any) -> Any:
    return await outcome


def _as_ours(error: BaseException, score_fn: Callable[..., Any]) -> BaseException:
    """An error that the owner knows: a class of the user's own may be unknown there."""
    text = text_of(error)
    if isinstance(error, RewardError | UserInputError | InfrastructureError):
        known = type(error).__module__ == AgentRLError.__module__
        kinds = (InfrastructureError, UserInputError, RewardError)
        return error if known else next(kind(text) for kind in kinds if isinstance(error, kind))
    return RewardError(f"the score function raised {type(error).__name__}: {text}{raised_at(error, score_fn)}")


class _ToldTime(OwnTime):
    """A stopwatch that tells the owner, who holds the limit, when it stands."""

    def __init__(self, owner_end: Connection) -> None:
        super().__init__()
        self._owner_end = owner_end
        self._depth = 0

    def spend(self, seconds: float) -> None:
        """Count seconds of a wait after all."""
        self._owner_end.send((SPENT, seconds))

    @contextmanager
    def stands(self) -> Iterator[None]:
        """The watch stands within this block."""
        self._depth += 1
        if self._depth == 1:
            self._owner_end.send((WAITS, None))
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._owner_end.send((GOES_ON, None))
