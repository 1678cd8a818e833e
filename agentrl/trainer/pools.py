"""The places of training ranks: one `ResourcePool` for each pool of the run."""

from __future__ import annotations

from agentrl.config import RunConfig
from agentrl.config.machine import uses_cuda
from agentrl.config.resource_pools import pools_in_use
from agentrl.single_controller import ResourcePool, cores


def make_pools(config: RunConfig) -> dict[str, ResourcePool]:
    """By role of this run, the pool that it is in; the worker groups of roles in one pool share its ranks' places."""
    used = pools_in_use(config)
    gpus, parts = uses_cuda(config), [pool.process_on_nodes for pool in used]
    made = [ResourcePool(part, use_gpu=gpus, threads_per_rank=_threads(config, part, parts)) for part in parts]
    if config.trainer.backend == "local":  # in this process every role is on the same rank
        made = made[:1] * len(made)
    return {role: pool for each, pool in zip(used, made, strict=True) for role in each.roles}


def _threads(config: RunConfig, part: tuple[int, ...], parts: list[tuple[int, ...]]) -> int:
    """CPU threads of a rank: its share of the cores of its machine.

    Engines wait while ranks compute, and the roles of a pool take turns, so that neither counts; ranks of all pools
    compute at the same time where they are on one machine.
    """
    trainer = config.trainer
    if trainer.threads_per_rank is not None:
        return trainer.threads_per_rank
    alone = config.trainer.backend == "local" or config.ray_init.address is not None
    neighbours = max(part) if alone else sum(map(max, parts))
    return 1 if trainer.deterministic else max(1, cores() // neighbours)
