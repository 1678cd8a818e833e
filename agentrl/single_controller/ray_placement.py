"""Assigns a machine and GPU of a Ray cluster to each rank. Groups on one pool share its placement groups."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentrl.errors import ConfigError
from agentrl.single_controller.resource_pool import ResourcePool

RESERVE_TIMEOUT_S = 300.0
_GROUPS, _USERS = "placement_groups", "users"


def acquire(pool: ResourcePool) -> list[dict[str, Any]]:
    """Ray actor options of each rank, in rank order; reserves the pool's places at the first call.

    CPU ranks on one machine reserve nothing: they run even if Ray counts too few CPUs.

    Raises:
        ConfigError: the cluster is too small.
    """
    plain: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
    if not pool.use_gpu and len(pool.process_on_nodes) == 1:
        return [plain] * pool.world_size
    if not pool.shared.get(_GROUPS):
        pool.shared[_GROUPS] = _reserve(pool)
    pool.shared[_USERS] = pool.shared.get(_USERS, 0) + 1
    share = {"num_gpus" if pool.use_gpu else "num_cpus": 1 / pool.max_colocate}
    return [
        plain
        | share
        | {
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                pool.shared[_GROUPS][node], placement_group_bundle_index=local
            )
        }
        for node, local in pool.rank_slots()
    ]


def release(pool: ResourcePool) -> None:
    """Free the places once the last group on the pool has ended."""
    if not pool.shared.get(_GROUPS):
        return
    pool.shared[_USERS] -= 1
    if pool.shared[_USERS] == 0:
        _remove(pool.shared.pop(_GROUPS))


def _reserve(pool: ResourcePool) -> list[Any]:
    """One placement group per machine, one bundle per rank."""
    kind = "GPU" if pool.use_gpu else "CPU"
    has = ray.cluster_resources().get(kind, 0)
    if has < pool.world_size:
        raise ConfigError(
            f"{pool.world_size} ranks need {pool.world_size} {kind}s, but the Ray cluster has {has:g}: "
            "lower trainer.nnodes or trainer.n_gpus_per_node, or use a larger cluster"
        )
    bundles = [[{kind: 1.0}] * count for count in pool.process_on_nodes]
    groups = [ray.util.placement_group(bundle, strategy="STRICT_PACK") for bundle in bundles]
    for group, count in zip(groups, pool.process_on_nodes, strict=True):
        if not group.wait(timeout_seconds=RESERVE_TIMEOUT_S):
            _remove(groups)
            raise ConfigError(f"no machine of the Ray cluster has {count} free {kind}s for the training ranks")
    return groups


def _remove(groups: list[Any]) -> None:
    for group in groups:
        ray.util.remove_placement_group(group)
