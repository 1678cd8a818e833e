"""Where the engines of a run are: in this process, on the machines of the Ray cluster, or on the GPUs of its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.config.machine import uses_cuda
from agentrl.config.resource_pools import pool_of, pools_in_use
from agentrl.errors import ConfigError
from agentrl.inference.fleet import MakePlaces
from agentrl.single_controller import ResourcePool
from agentrl.trainer.shared_folders import check_shared_folders


def reserve_places(config: RunConfig, pools: Mapping[str, ResourcePool]) -> MakePlaces | None:
    """Reserve the places of all ranks and engines on the Ray cluster that this process is connected to.

    Args:
        config: the run.
        pools: by role.

    Returns:
        What makes the places of engines; None: they are subprocesses of this process. On one machine without GPUs
        actors would only be one more process for each server.

    Raises:
        ConfigError: the cluster is too small, or its machines do not share the run's folders.
    """
    from agentrl.inference.ray_hosts import ray_places
    from agentrl.single_controller import ray_machines, ray_placement

    for used in pools_in_use(config):
        ray_placement.check_machines(used.process_on_nodes, "GPU" if uses_cuda(config) else "CPU", used.key)
    ray_placement.reserve({pool_of(config, role).name: pool for role, pool in pools.items()})
    check_shared_folders(config, ray_placement.nodes_of(pools.values()))
    if config.actor_rollout_ref.rollout.server.addresses is not None:
        return None
    if uses_cuda(config):
        bundles = {
            index: ray_placement.shared_bundles(pools["actor"], ranks)
            for index, ranks in enumerate(_ranks_of_engines(config, pools["actor"]))
        }
        return partial(ray_places, bundles=bundles)
    return ray_places if ray_machines.several() else None


def _ranks_of_engines(config: RunConfig, pool: ResourcePool) -> list[range]:
    """For each engine, the ranks whose GPUs it shares."""
    rollout = config.actor_rollout_ref.rollout
    size, count = rollout.tensor_model_parallel_size, rollout.server.launch
    if size * count > pool.world_size:
        raise ConfigError(
            f"actor_rollout_ref.rollout.server.launch: {count} engines with {size} GPUs each need {size * count}, but "
            f"the ranks have {pool.world_size}"
        )
    return [range(index * size, (index + 1) * size) for index in range(count)]


def weights_folder(config: RunConfig) -> Path | None:
    """Where weights for engines lie; None: in the shared memory of this machine, or its temporary folder.

    On several machines it is in the run folder, which all of them share, if no other is given.
    """
    given = config.actor_rollout_ref.rollout.weight_sync_dir
    if given is None and config.trainer.backend == "ray":
        from agentrl.single_controller import ray_machines

        if ray_machines.several():
            return Path(config.trainer.default_local_dir).absolute() / "weights"
    return None if given is None else Path(given)
