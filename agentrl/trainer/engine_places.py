"""Where the engines of a run are: in this process, on the machines of the Ray cluster, or on the GPUs of its ranks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.config.resource_pools import pool_of
from agentrl.config.weight_transport import weight_transport
from agentrl.errors import ConfigError
from agentrl.inference.fleet import MakePlaces
from agentrl.inference.weights.group import is_here
from agentrl.placement.of_run import place
from agentrl.single_controller import ResourcePool
from agentrl.trainer.shared_folders import check_shared_folders

logger = logging.getLogger(__name__)


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

    planned = place(config)
    if planned.problems:
        raise ConfigError(list(planned.problems))
    named = {pool_of(config, role).name: pool for role, pool in pools.items()}
    own = [engine.tp for engine in planned.engines] if planned.mode == "split" else []
    bundles = ray_placement.reserve(named, own)
    check_shared_folders(config, ray_placement.nodes_of(pools.values()))
    if planned.mode == "given":
        return None
    if planned.mode == "cpu":
        if not ray_machines.several():
            return None
        if weight_transport(config) == "ipc":
            raise ConfigError(
                "actor_rollout_ref.rollout.weight_sync: got ipc, but engines are on several machines, which share no "
                "memory: use distributed or disk"
            )
        return ray_places
    if planned.mode == "colocated":
        bundles = [
            ray_placement.shared_bundles(named[engine.pool], engine.ranks) for engine in planned.engines if engine.pool
        ]
    return partial(ray_places, bundles=dict(enumerate(bundles)))


def weights_folder(config: RunConfig) -> Path | None:
    """Where weights for engines lie; None: in the shared memory of this machine, or its temporary folder.

    On several machines it is in the run folder, which all of them share, if no other is given.
    """
    given = config.actor_rollout_ref.rollout.weight_sync_dir
    if given is not None:
        return Path(given)
    if config.trainer.backend == "ray":
        from agentrl.single_controller import ray_machines

        if ray_machines.several():
            return Path(config.trainer.default_local_dir).absolute() / "weights"
    far = [address for address in config.actor_rollout_ref.rollout.server.addresses or () if not is_here(address)]
    if far and weight_transport(config) in ("disk", "adapter"):
        logger.warning(
            "weights for the engines are written to a folder of this machine, but %s is on another one: unless it has "
            "that folder too, set actor_rollout_ref.rollout.weight_sync_dir to one that both have, or, for SGLang, "
            "weight_sync=distributed",
            ", ".join(far),
        )
    return None
