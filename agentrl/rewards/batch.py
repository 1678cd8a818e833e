"""The batch reward manager: one call of the score function for all trajectories that end at about the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from agentrl.errors import InfrastructureError, RewardError, UserInputError, repr_of
from agentrl.interfaces import RewardInput, RewardManager, RewardResult
from agentrl.rewards.dispatcher import ScoreFunction
from agentrl.rewards.naive import to_result
from agentrl.rewards.score_call import MANY, ScoreCall

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
        takes: keywords of a call.
        what: names the function in errors.

    Raises:
        PluginError: the function cannot be called so.
    """

    def __init__(
        self,
        score_fn: ScoreFunction,
        timeout_s: float = 60.0,
        *,
        takes: Sequence[str] = MANY,
        what: str = "the score function",
    ) -> None:
        self._call = ScoreCall(score_fn, timeout_s, takes, what)
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
        try:
            values = await self._scores([item for item, _ in batch])
        except (RewardError, UserInputError, InfrastructureError) as error:
            # A deadline, a wrong number of values and a wrong input are no single trajectory's.
            raised = isinstance(error, InfrastructureError) or isinstance(error.__cause__, BaseException)
            if len(batch) == 1 or isinstance(error, UserInputError) or not raised:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                return
            # One of 8 raises: 4 + 4, then 2 + 2, then 1 + 1. Seven get their scores, for at most 6 further calls.
            middle = len(batch) // 2
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])
        else:
            for (_, future), value in zip(batch, values, strict=True):
                _settle_one(future, value)

    async def _scores(self, items: Sequence[RewardInput]) -> Sequence[Any]:
        values = await self._call(
            data_sources=[item.data_source for item in items],
            solution_strs=[item.solution_str for item in items],
            ground_truths=[item.ground_truth for item in items],
            extra_infos=[item.extra_info for item in items],
        )
        if isinstance(values, str | dict) or not hasattr(values, "__len__") or len(values) != len(items):
            wanted = f"a list of {len(items)} values"
            raise RewardError(f"the batch score function returned {repr_of(values)}, wanted {wanted}")
        return list(values)


def _settle_one(future: asyncio.Future[RewardResult], value: Any) -> None:
    if future.done():
        return
    try:
        future.set_result(to_result(value))
    except RewardError as error:
        future.set_exception(error)
