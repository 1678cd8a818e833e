"""ResourcePool: how many ranks run on which machine, and what each may use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agentrl.errors import ConfigError


@dataclass(frozen=True)
class ResourcePool:
    """Places for ranks. Groups created on the same pool share its GPUs.

    Args:
        process_on_nodes: ranks per machine, one entry per machine.
        use_gpu: one GPU per rank; else ranks use the CPU and reserve nothing.
        threads_per_rank: CPU threads of each rank; None leaves torch's default.
        max_colocate: most groups that may share one GPU of this pool: the four roles of a run, and an engine.
    """

    process_on_nodes: tuple[int, ...] | list[int] = (1,)
    use_gpu: bool = False
    threads_per_rank: int | None = None
    max_colocate: int = 5

    def __post_init__(self) -> None:
        if not self.process_on_nodes or any(count < 1 for count in self.process_on_nodes):
            raise ConfigError(f"a resource pool needs at least one rank per machine, got {self.process_on_nodes}")
        if self.threads_per_rank is not None and self.threads_per_rank < 1:
            raise ConfigError(f"threads_per_rank: got {self.threads_per_rank}, wanted at least 1")
        if self.max_colocate < 1:
            raise ConfigError(f"max_colocate: got {self.max_colocate}, wanted at least 1")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(self.process_on_nodes)

    @cached_property
    def shared(self) -> dict[str, Any]:
        """State that a backend keeps for all groups on this pool (Ray: its placement groups)."""
        return {}

    def rank_slots(self) -> list[tuple[int, int]]:
        """(node, local rank) of each rank, in rank order."""
        return [(node, local) for node, count in enumerate(self.process_on_nodes) for local in range(count)]


def cores() -> int:
    """CPU cores that this process may use: a container or `taskset` may leave it fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
