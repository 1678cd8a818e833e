"""The places of training ranks: one `ResourcePool` for each pool of the run."""

from __future__ import annotations

import os

from agentrl.config import RunConfig
from agentrl.config.machine import uses_cuda
from agentrl.config.resource_pools import pools_in_use
from agentrl.single_controller import ResourcePool


def make_pools(config: RunConfig) -> dict[str, ResourcePool]:
    """The pools with a role of this run, by name. Worker groups of roles in one pool share its ranks' places."""
    # In this process every role is on the same rank.
    used = pools_in_use(config)[:1] if config.trainer.backend == "local" else pools_in_use(config)
    parts = [pool.process_on_nodes for pool in used]
    gpus = uses_cuda(config)
    return {
        pool.name: ResourcePool(pool.process_on_nodes, use_gpu=gpus, threads_per_rank=_threads(config, part, parts))
        for pool, part in zip(used, parts, strict=True)
    }


def _threads(config: RunConfig, part: tuple[int, ...], parts: list[tuple[int, ...]]) -> int:
    """CPU threads of a rank; ranks of all pools compute at the same time where they are on one machine."""
    trainer = config.trainer
    if trainer.threads_per_rank is not None:
        return trainer.threads_per_rank
    private = config.ray_init.address is None
    neighbours = sum(max(each) for each in parts) if private else max(part)
    return 1 if trainer.deterministic else max(1, (os.cpu_count() or 1) // neighbours)
