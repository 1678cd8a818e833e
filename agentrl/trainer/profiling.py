"""Profiles the steps that `trainer.profile_steps` names, in every process of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from agentrl.config import RunConfig
from agentrl.errors import AgentRLError, text_of
from agentrl.observability.profiler import ProcessProfiler
from agentrl.single_controller import WorkerGroup

logger = logging.getLogger(__name__)


class StepProfiler:
    """Starts and stops the profilers of all processes around a step.

    With the local backend there is one process, whose trace is `rank_0`. Otherwise this one's is `driver`, and ranks
    write `actor_rank_0`, `ref_rank_0` and so on.

    Args:
        config: the run.
        total_steps: a later step is never profiled, which is told.
    """

    def __init__(self, config: RunConfig, total_steps: int) -> None:
        self._config = config
        self._steps = frozenset(config.trainer.profile_steps or ())
        never = sorted(step for step in self._steps if step > total_steps)
        if never:
            logger.warning("trainer.profile_steps: the run ends at step %d, before %s", total_steps, never)

    @contextmanager
    def __call__(self, step: int, groups: Sequence[WorkerGroup]) -> Iterator[None]:
        """Profile what happens inside, if the step is one of those."""
        tool = self._config.trainer.profile_tool
        if step not in self._steps or tool == "spans":  # those are `tracing`'s
            yield
            return
        trainer, is_local = self._config.trainer, self._config.trainer.backend == "local"
        own = ProcessProfiler(tool, trainer.profile_file(step, "rank_0" if is_local else "driver"))
        # A driver of Ray's has no GPU: to ask CUDA would open a context on one that belongs to a rank.
        watches_itself = is_local or own.tool == "torch"
        ranks = [] if is_local else groups
        starts = [group.submit("start_profile", step) for group in ranks]
        for start in starts:
            start.get()
        if watches_itself:
            own.start()
        try:
            yield
        except BaseException:
            self._stop(own.stop if watches_itself else None, ranks, step)
            raise
        self._stop(own.stop if watches_itself else None, ranks, step)

    def _stop(self, stop_own: Callable[[], None] | None, ranks: Sequence[WorkerGroup], step: int) -> None:
        """Write everything. What cannot be written is told, and costs the run nothing else."""
        try:
            if stop_own is not None:
                stop_own()
            for end in [group.submit("stop_profile") for group in ranks]:
                end.get()
        except (OSError, RuntimeError, AgentRLError) as error:
            logger.warning("step %d: its profile is not written: %s", step, text_of(error))
            return
        logger.info("step %d is profiled: %s", step, self._config.trainer.profile_file(step, "rank").parent)
