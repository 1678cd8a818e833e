"""Calls of one step on its batch: in one pool one after another, in different pools at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from agentrl.data_proto import DataProto
from agentrl.single_controller import WorkerFuture, WorkerGroup


@dataclass(frozen=True, slots=True)
class Pass:
    """A call that needs no result of the others.

    Attributes:
        stage: its name in `timing_s/*`.
        group: the ranks.
        method: a registered method that takes the batch.
    """

    stage: str
    group: WorkerGroup
    method: str


class Passes:
    """Runs the passes over a batch.

    Roles in one pool share its GPUs, so that they take turns, in the order given. With actor and reference in a pool of
    two GPUs, and the critic in another::

        global_pool    old_log_prob | ref
        critic         values       |

    Where all are in one pool, each starts when its result is asked for, so that only one batch is on its way.

    Args:
        batch: what each of them gets.
        passes: in the order of their results.
        beside: a group that is at work on something else meanwhile; None: there is none.
    """

    def __init__(self, batch: DataProto, passes: Sequence[Pass], beside: WorkerGroup | None = None) -> None:
        self._batch = batch
        self._left = {each.stage: each for each in passes}
        self._started: dict[str, tuple[Pass, WorkerFuture]] = {}
        self._busy = [] if beside is None else [beside]
        self._rows: list[int] | None = None
        if len({id(group.pool) for group in (*(each.group for each in passes), *self._busy)}) > 1:
            for each in passes:
                self._start(each)

    @property
    def stages(self) -> list[str]:
        """The passes whose result was not asked for yet."""
        return [*self._started, *self._left]

    def keep(self, rows: list[int]) -> Self:
        """Leave all but these rows of the batch out of the results."""
        self._rows = rows
        return self

    def result(self, stage: str) -> DataProto:
        """Wait for a pass.

        Raises:
            AgentRLError: it failed.
        """
        if stage not in self._started:
            self._start(self._left[stage])
        joined: DataProto = self._started.pop(stage)[1].get()
        return joined if self._rows is None else joined[self._rows]

    def _start(self, each: Pass) -> None:
        self._left.pop(each.stage)
        others = [*self._busy, *(other.group for other, _ in self._started.values())]
        ahead = [group for group in others if group.pool is each.group.pool]
        self._started[each.stage] = each, each.group.submit_after(ahead, each.method, self._batch)
