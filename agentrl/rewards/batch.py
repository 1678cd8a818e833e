"""The batch reward manager: one call of the score function for all trajectories that end at about the same time."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Sequence
from typing import Any

from agentrl.errors import InfrastructureError, RewardError, UserInputError, shown, text_of
from agentrl.interfaces import RewardInput, RewardManager, RewardResult
from agentrl.plugins.threads import call_in_thread, contained
from agentrl.rewards.dispatcher import ScoreFunction
from agentrl.rewards.naive import to_result

GATHER_S = 0.05
"""How long a first trajectory waits for others before it is scored."""
MAX_BATCH = 512

Waiting = tuple[RewardInput, "asyncio.Future[RewardResult]"]


class BatchRewardManager(RewardManager):
    """Calls `score_fn(data_sources=, solution_strs=, ground_truths=, extra_infos=)` with lists of equal length.

    Scores are computed while other trajectories still run, so a call gets those that have just ended, not the whole
    step. A worker makes one call at a time. A batch whose call raises is split in halves, so that one bad trajectory
    fails alone.

    Args:
        score_fn: sync (runs in a thread) or async; returns one number, or mapping with `score`, per trajectory, in
            order.
        timeout_s: deadline of one call.
    """

    def __init__(self, score_fn: ScoreFunction, timeout_s: float = 60.0) -> None:
        self._score_fn = score_fn
        self._timeout_s = timeout_s
        function = score_fn.func if isinstance(score_fn, functools.partial) else score_fn
        self._is_async = inspect.iscoroutinefunction(inspect.unwrap(function))
        self._waiting: list[Waiting] = []
        self._running: asyncio.Task[None] | None = None

    async def score(self, item: RewardInput) -> RewardResult:
        """Score one trajectory with others.

        Raises:
            RewardError: the function raised for this trajectory, took too long, or returned no finite number for it.
            InfrastructureError: a service behind the function failed for this trajectory.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[RewardResult] = loop.create_future()
        self._waiting.append((item, future))
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_S)
            batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            await self._settle([pair for pair in batch if not pair[1].done()])

    async def _settle(self, batch: Sequence[Waiting]) -> None:
        """Give each trajectory of a batch its score, or its error."""
        if not batch:
            return
        outcome = await self._call([item for item, _ in batch])
        if not isinstance(outcome, Exception):
            for (_, future), value in zip(batch, outcome, strict=True):
                _settle_one(future, value)
        elif len(batch) == 1 or isinstance(outcome, TimeoutError | UserInputError | RewardError):
            for _, future in batch:
                if not future.done():
                    future.set_exception(_as_error(outcome, self._timeout_s))
        else:
            # One of 8 raises: 4 + 4, then 2 + 2, then 1 + 1. Seven get their scores, for at most 6 further calls.
            middle = len(batch) // 2
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])

    async def _call(self, items: Sequence[RewardInput]) -> Sequence[Any] | Exception:
        """The function's values, or the error that it raised."""
        task = asyncio.ensure_future(self._invoke(items))
        try:
            await asyncio.wait({task}, timeout=self._timeout_s)
        finally:
            task.cancel()
        if not task.done():
            return TimeoutError()
        error = task.exception()
        if error is not None:
            return error if isinstance(error, Exception) else RewardError(f"{type(error).__name__}: {text_of(error)}")
        values = task.result()
        if isinstance(values, str | dict) or not hasattr(values, "__len__") or len(values) != len(items):
            wanted = f"a list of {len(items)} values"
            return RewardError(f"the batch score function returned {shown(values)}, wanted {wanted}")
        return list(values)

    async def _invoke(self, items: Sequence[RewardInput]) -> Any:
        arguments = {
            "data_sources": [item.data_source for item in items],
            "solution_strs": [item.solution_str for item in items],
            "ground_truths": [item.ground_truth for item in items],
            "extra_infos": [item.extra_info for item in items],
        }
        if self._is_async:
            return await contained(self._score_fn(**arguments))
        outcome = await call_in_thread(lambda: self._score_fn(**arguments))
        return await contained(outcome) if inspect.isawaitable(outcome) else outcome


def _settle_one(future: asyncio.Future[RewardResult], value: Any) -> None:
    if future.done():
        return
    try:
        future.set_result(to_result(value))
    except RewardError as error:
        future.set_exception(error)


def _as_error(error: Exception, timeout_s: float) -> Exception:
    if isinstance(error, RewardError | UserInputError | InfrastructureError):
        return error
    if isinstance(error, TimeoutError):
        return RewardError(f"the score function took over {timeout_s:g} s (reward_model.timeout_s)")
    return RewardError(f"the score function raised {type(error).__name__}: {text_of(error)}")
