"""The naive reward manager: one call of the score function per trajectory."""

from __future__ import annotations

import asyncio
import inspect
import math
import numbers
from collections.abc import Mapping
from typing import Any

from agentrl.errors import InfrastructureError, RewardError, UserInputError, shown, text_of
from agentrl.interfaces import RewardInput, RewardManager, RewardResult
from agentrl.plugins.threads import call_in_thread, contained
from agentrl.rewards.dispatcher import ScoreFunction

MAX_THREADS = 32


class NaiveRewardManager(RewardManager):
    """Calls `score_fn(data_source=, solution_str=, ground_truth=, extra_info=)` for each trajectory.

    Args:
        score_fn: sync (runs in a thread) or async; returns a number, or a mapping with `score`.
        timeout_s: deadline of one call.
    """

    def __init__(self, score_fn: ScoreFunction, timeout_s: float = 60.0) -> None:
        self._score_fn = score_fn
        self._timeout_s = timeout_s
        self._is_async = inspect.iscoroutinefunction(inspect.unwrap(score_fn)) or inspect.iscoroutinefunction(
            getattr(score_fn, "func", score_fn)
        )
        self._threads = asyncio.Semaphore(MAX_THREADS)

    async def score(self, item: RewardInput) -> RewardResult:
        """Score one trajectory.

        Raises:
            RewardError: the function raised, took too long, or returned no finite number.
            InfrastructureError: a service behind the function failed.
        """
        task = asyncio.ensure_future(self._call(item))
        try:
            await asyncio.wait({task}, timeout=self._timeout_s)
        finally:
            task.cancel()
        if not task.done():
            raise RewardError(f"the score function took over {self._timeout_s:g} s (reward_model.timeout_s)")
        error = task.exception()
        if isinstance(error, RewardError | UserInputError | InfrastructureError):
            raise error
        if error is not None:
            raise RewardError(f"the score function raised {type(error).__name__}: {text_of(error)}") from error
        return to_result(task.result())

    async def _call(self, item: RewardInput) -> Any:
        arguments = {
            "data_source": item.data_source,
            "solution_str": item.solution_str,
            "ground_truth": item.ground_truth,
            "extra_info": item.extra_info,
        }
        if self._is_async:
            return await contained(self._score_fn(**arguments))
        async with self._threads:
            outcome = await call_in_thread(lambda: self._score_fn(**arguments))
        return await contained(outcome) if inspect.isawaitable(outcome) else outcome


def to_result(outcome: Any) -> RewardResult:
    """Check what a score function returned: a number, or a mapping with `score` and optionally `service_used`.

    Raises:
        RewardError: the score is missing or not a finite number.
    """
    if isinstance(outcome, Mapping):
        if "score" not in outcome:
            raise RewardError(f"the score function returned a mapping without 'score': {sorted(map(str, outcome))}")
        extra = {str(key): value for key, value in outcome.items() if key not in ("score", "service_used")}
        return RewardResult(_finite(outcome["score"]), extra, bool(outcome.get("service_used", True)))
    return RewardResult(_finite(outcome))


def _finite(value: Any) -> float:
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        value = item()
    if not isinstance(value, numbers.Real):
        raise RewardError(f"the score function returned {shown(value)} ({type(value).__name__}), wanted a number")
    try:
        score = float(value)
    except OverflowError:  # 10**400
        score = math.inf
    if not math.isfinite(score):
        raise RewardError(f"the score function returned {shown(value)}, wanted a finite number")
    return score
