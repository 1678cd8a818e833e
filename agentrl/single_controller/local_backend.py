"""The `local` backend: one rank, in this process. For debugging, tests and machines without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from agentrl.errors import AgentRLError, ConfigError
from agentrl.single_controller.dispatch import DispatchPlan
from agentrl.single_controller.named_range import named_range
from agentrl.single_controller.resource_pool import ResourcePool
from agentrl.single_controller.worker import Placement, Worker
from agentrl.timeline import Timeline


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """A call that has already run."""

    value: Any = None
    error: AgentRLError | None = None

    def done(self) -> bool:
        """Always true."""
        return True

    def results(self) -> list[Any]:
        """The only result; raises the error if the call failed."""
        if self.error is not None:
            raise self.error
        return [self.value]


class LocalBackend:
    """One worker in this process. Its arguments are shared, not copied, and errors are raised unchanged.

    Raises:
        ConfigError: more than one rank, or a GPU on a machine without one.
    """

    def __init__(self, pool: ResourcePool, worker_cls: type[Worker], *args: Any, **kwargs: Any) -> None:
        if pool.world_size != 1:
            raise ConfigError(
                f"trainer.backend=local runs one rank in this process, got {pool.world_size}: "
                "set trainer.nnodes=1 and trainer.n_gpus_per_node=1, or trainer.backend=ray"
            )
        if pool.use_gpu and not torch.cuda.is_available():
            raise ConfigError("trainer.device: the run needs a GPU, but torch finds none: set trainer.device=cpu")
        if pool.threads_per_rank is not None:
            torch.set_num_threads(pool.threads_per_rank)
        self.world_size = 1
        self._worker = worker_cls.place(Placement(use_gpu=pool.use_gpu), None, *args, **kwargs)

    def start(self, method: str, plan: DispatchPlan, after: Sequence[Any] = ()) -> FinishedCall:
        """Run the call now; those of other groups have ended."""
        args, kwargs = plan.calls[0]
        try:
            with named_range(method):
                return FinishedCall(getattr(self._worker, method)(*args, **kwargs))
        except AgentRLError as error:
            return FinishedCall(error=error)

    def check(self) -> None:
        """Nothing to check: the rank lives as long as this process."""

    def wait_until_free(self, timeout_s: float | None) -> None:
        """Nothing to wait for: calls end before `start` returns."""

    def take_timelines(self, timeout_s: float) -> list[list[Timeline]]:
        """Nothing of its own: a call is noted in the timeline of this process."""
        return [[]]

    def shutdown(self) -> None:
        """Let the worker leave its process group."""
        self._worker.close()
