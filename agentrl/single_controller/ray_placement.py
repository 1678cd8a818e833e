"""Assigns a machine and GPU of a Ray cluster to each rank. Groups on one pool share its placement groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentrl.errors import ConfigError
from agentrl.single_controller.resource_pool import ResourcePool

RESERVE_TIMEOUT_S = 300.0
_GROUPS, _USERS = "placement_groups", "users"


def reserve(pools: Mapping[str, ResourcePool]) -> None:
    """Reserve the places of all pools of a run, before any of them loads something.

    CPU ranks on a cluster of one machine reserve nothing: they run even if Ray counts too few CPUs.

    Args:
        pools: by name, for errors.

    Raises:
        ConfigError: the cluster is too small; nothing is reserved then.
    """
    named = [(name, pool) for name, pool in pools.items() if not pool.shared.get(_GROUPS) and _needs_places(pool)]
    for kind in ("GPU", "CPU"):
        _require(kind, [(name, pool) for name, pool in named if _kind(pool) == kind])
    # The largest parts first: small ones that are spread over machines could leave no room for them.
    parts = [(count, place, pool, name) for name, pool in named for place, count in enumerate(pool.process_on_nodes)]
    parts.sort(key=lambda part: -part[0])
    groups = [
        ray.util.placement_group([{_kind(pool): 1.0}] * count, strategy="STRICT_PACK") for count, _, pool, _ in parts
    ]
    for group, (count, _, pool, name) in zip(groups, parts, strict=True):
        if not group.wait(timeout_seconds=RESERVE_TIMEOUT_S):
            _remove(groups)
            raise ConfigError(f"no machine of the Ray cluster has {count} free {_kind(pool)}s for the ranks of {name}")
    for group, (_, place, pool, _) in zip(groups, parts, strict=True):
        pool.shared.setdefault(_GROUPS, {})[place] = group


def acquire(pool: ResourcePool) -> list[dict[str, Any]]:
    """Ray actor options of each rank, in rank order; reserves the pool's places if `reserve` has not.

    Raises:
        ConfigError: the cluster is too small.
    """
    plain: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
    reserve({"this pool": pool})
    groups = pool.shared.get(_GROUPS)
    if not groups:
        return [plain] * pool.world_size
    pool.shared[_USERS] = pool.shared.get(_USERS, 0) + 1
    share = {f"num_{_kind(pool).lower()}s": 1 / pool.max_colocate}
    return [
        plain
        | share
        | {"scheduling_strategy": PlacementGroupSchedulingStrategy(groups[node], placement_group_bundle_index=local)}
        for node, local in pool.rank_slots()
    ]


def release(pool: ResourcePool) -> None:
    """Free the places once the last group on the pool has ended."""
    pool.shared[_USERS] = pool.shared.get(_USERS, 0) - 1
    if pool.shared[_USERS] <= 0:
        free([pool])


def free(pools: Sequence[ResourcePool]) -> None:
    """Free what `reserve` took, also where no group has used it."""
    for pool in pools:
        _remove(list(pool.shared.pop(_GROUPS, {}).values()))
        pool.shared.pop(_USERS, None)


def _kind(pool: ResourcePool) -> str:
    return "GPU" if pool.use_gpu else "CPU"


def _needs_places(pool: ResourcePool) -> bool:
    # Ray would deal ranks that reserve nothing over all machines of a cluster.
    return pool.use_gpu or len(pool.process_on_nodes) > 1 or len(_machines("CPU")) > 1


def _machines(kind: str) -> list[float]:
    """GPUs or CPUs of each machine of the cluster."""
    return [node["Resources"].get(kind, 0.0) for node in ray.nodes() if node["Alive"]]


def _require(kind: str, pools: Sequence[tuple[str, ResourcePool]]) -> None:
    """Compare what pools need with what the cluster has, busy or not.

    Raises:
        ConfigError: with the sum: `4 ranks need 4 GPUs (global_pool 3 + critic 1), but the Ray cluster has 2`.
    """
    machines = _machines(kind)
    need = sum(pool.world_size for _, pool in pools)
    if need > sum(machines):
        parts = f" ({' + '.join(f'{name} {pool.world_size}' for name, pool in pools)})" if len(pools) > 1 else ""
        raise ConfigError(
            f"{need} ranks need {need} {kind}s{parts}, but the Ray cluster has {sum(machines):g}: "
            "lower trainer.nnodes, trainer.n_gpus_per_node or trainer.resource_pools, or use a larger cluster"
        )
    for name, pool in pools:
        largest = max(pool.process_on_nodes)
        if largest > max(machines):
            raise ConfigError(
                f"{name} needs a machine with {largest} {kind}s, but the largest of the Ray cluster has "
                f"{max(machines):g}: name fewer ranks for each machine and more machines"
            )


def _remove(groups: list[Any]) -> None:
    for group in groups:
        ray.util.remove_placement_group(group)
