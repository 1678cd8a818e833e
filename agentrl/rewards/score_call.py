"""The one place that calls a score function: async or in a thread, with a deadline, and with errors that name it."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from collections.abc import Sequence
from typing import Any

from agentrl.errors import InfrastructureError, PluginError, RewardError, UserInputError, text_of
from agentrl.own_time import CURRENT, OwnTime
from agentrl.plugins.functions import refuse_generator
from agentrl.plugins.threads import call_in_thread, contained
from agentrl.plugins.users_code import described, raised_at
from agentrl.plugins.waiting import has_ended
from agentrl.rewards.dispatcher import ScoreFunction
from agentrl.timeline import note_wait

MAX_THREADS = 32
MAX_WAIT_S = 3600.0
"""Of one call, in all queues together: a queue that never moves must not hold up the run without end."""
_LOOK_S = 0.05
"""A call that waits in a queue near the end of its own time is looked at this often."""
ONE = ("data_source", "solution_str", "ground_truth", "extra_info")
"""Keywords of a call for one trajectory."""
MANY = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
"""Keywords of a call for several."""


class ScoreCall:
    """Calls a score function; one that hangs holds up only its own call.

    Waiting for one of the `MAX_THREADS` threads, and whatever the function does within `queueing()`, is not its time.

    Args:
        score_fn: sync (runs in a thread) or async.
        timeout_s: deadline of one call.
        takes: names of the keywords that it is called with.
        what: names it in errors.

    Raises:
        PluginError: it cannot be called with these.
    """

    def __init__(
        self, score_fn: ScoreFunction, timeout_s: float, takes: Sequence[str], what: str = "the score function"
    ) -> None:
        check_call(score_fn, takes)
        self._what = what
        self._score_fn = score_fn
        self._timeout_s = timeout_s
        function = getattr(score_fn, "func", score_fn)  # a `functools.partial` hides what it calls
        self._is_async = inspect.iscoroutinefunction(inspect.unwrap(function))
        self._threads = asyncio.Semaphore(MAX_THREADS)

    async def __call__(self, **arguments: Any) -> Any:
        """What the function returns for these arguments, not checked.

        Raises:
            RewardError: it took too long, or raised an error that is not agentrl's; that one is the `__cause__`.
            UserInputError: it raised one.
            InfrastructureError: it raised one: a service behind it failed.
        """
        watch = OwnTime()
        task = asyncio.ensure_future(self._call(arguments, watch))
        try:
            await self._until_done(task, watch)
        finally:
            watch.abandoned = True
            task.cancel()
        # It may have awaited something that was cancelled: then `task.exception()` would raise.
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if isinstance(error, RewardError | UserInputError | InfrastructureError):
            raise error
        if error is not None:
            place = raised_at(error, self._score_fn)
            raise RewardError(f"{self._what} raised {type(error).__name__}: {text_of(error)}{place}") from error
        return task.result()

    async def _until_done(self, task: asyncio.Task[Any], watch: OwnTime) -> None:
        # A limit of 60 s, and 50 s in a queue: the first look, after 60 s, finds 10 s used and comes again after 50 s.
        left = self._timeout_s
        while not await has_ended(task, left):
            left = max(self._timeout_s - watch.seconds, _LOOK_S)
            if watch.seconds >= self._timeout_s:
                raise RewardError(f"{self._what} took over {self._timeout_s:g} s (reward_model.timeout_s)")
            if watch.waited_s > MAX_WAIT_S:
                raise RewardError(f"{self._what} waited over {MAX_WAIT_S:g} s for its turn")

    async def _call(self, arguments: dict[str, Any], watch: OwnTime) -> Any:
        CURRENT.set(watch)  # of this task, and of the copy that its thread gets
        if self._is_async:
            return await contained(self._score_fn(**arguments))
        asked = time.perf_counter()
        with watch.stands():
            await self._threads.acquire()
        note_wait("a thread for the score", asked)
        try:
            context = contextvars.copy_context()
            outcome = await call_in_thread(lambda: context.run(self._score_fn, **arguments))
        finally:
            self._threads.release()
        return await contained(outcome) if inspect.isawaitable(outcome) else outcome


def check_call(score_fn: ScoreFunction, takes: Sequence[str]) -> None:
    """Refuse at the start a function that every call would find wrong.

    Raises:
        PluginError: it yields, or its signature does not fit; names the function and the manager that fits.
    """
    refuse_generator(score_fn)
    try:
        signature = inspect.signature(score_fn)
    except (TypeError, ValueError):  # built in: its parameters are not known
        return
    try:
        signature.bind(**dict.fromkeys(takes))
    except TypeError as error:
        other, manager = (MANY, "batch") if takes == ONE else (ONE, "naive")
        fits = any(name in signature.parameters for name in other)
        hint = (
            f". It takes those of the reward manager {manager}: set reward_model.reward_manager={manager}"
            if fits
            else ""
        )
        raise PluginError(
            f"the score function {described(score_fn)} takes {signature}, but is called with the keywords "
            f"{', '.join(takes)}: {error}{hint}"
        ) from error
