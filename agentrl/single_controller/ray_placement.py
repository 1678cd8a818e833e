"""Assigns a machine and GPU of a Ray cluster to each rank. Groups on one pool share its placement groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentrl.errors import ConfigError
from agentrl.single_controller import ray_machines
from agentrl.single_controller.engine_bundles import EngineBundles
from agentrl.single_controller.resource_pool import ResourcePool

RESERVE_TIMEOUT_S = 300.0
_GROUPS, _USERS = "placement_groups", "users"


def reserve(pools: Mapping[str, ResourcePool], engine_gpus: Sequence[int] = ()) -> list[EngineBundles]:
    """Reserve the places of all pools of a run, before any of them loads something.

    CPU ranks on a cluster of one machine reserve nothing: they run even if Ray counts too few CPUs.

    Args:
        pools: by name, for errors.
        engine_gpus: for each engine with GPUs of its own, how many.

    Returns:
        What the engines have.

    Raises:
        ConfigError: the cluster is too small; nothing is reserved then.
    """
    named = [(name, pool) for name, pool in pools.items() if not pool.shared.get(_GROUPS) and _needs_places(pool)]
    for kind in ("GPU", "CPU"):
        _require(kind, [(n, p) for n, p in named if _kind(p) == kind], engine_gpus if kind == "GPU" else ())
    of_pools = [
        _Part(count, [{_kind(pool): 1.0}] * count, f"{_kind(pool)}s for the ranks of {name}", pool, place)
        for name, pool in named
        for place, count in enumerate(pool.process_on_nodes)
    ]
    of_engines = [
        _Part(gpus, [{"GPU": float(gpus)}], f"GPUs for engine {index}") for index, gpus in enumerate(engine_gpus)
    ]
    # The largest parts first: small ones that are spread over machines could leave no room for them.
    groups = {
        id(part): ray.util.placement_group(part.bundles, strategy="STRICT_PACK")
        for part in sorted([*of_pools, *of_engines], key=lambda part: -part.count)
    }
    for part in (*of_pools, *of_engines):
        if not groups[id(part)].wait(timeout_seconds=RESERVE_TIMEOUT_S):
            _remove(list(groups.values()))
            raise ConfigError(f"no machine of the Ray cluster has {part.count} free {part.what}")
    for part in of_pools:
        assert part.pool is not None
        part.pool.shared.setdefault(_GROUPS, {})[part.place] = groups[id(part)]
    return [EngineBundles(groups[id(part)], (0,), float(part.count), own=True) for part in of_engines]


@dataclass(frozen=True, slots=True)
class _Part:
    """What is reserved together on one machine."""

    count: int
    bundles: list[dict[str, float]]
    what: str
    pool: ResourcePool | None = None
    place: int = 0


def shared_bundles(pool: ResourcePool, ranks: Sequence[int]) -> EngineBundles:
    """The GPUs of these ranks, which are on one machine, for an engine that takes turns with them."""
    slots = [pool.rank_slots()[rank] for rank in ranks]
    group = pool.shared[_GROUPS][slots[0][0]]
    pool.shared[_USERS] = pool.shared.get(_USERS, 0) + 1  # the engine is there until `free`
    return EngineBundles(group, tuple(local for _, local in slots), 1 / pool.max_colocate, own=False)


def nodes_of(pools: Iterable[ResourcePool]) -> set[str]:
    """Ray nodes of the machines on which the places of pools are reserved."""
    groups = [group for pool in pools for group in pool.shared.get(_GROUPS, {}).values()]
    return {node for group in groups for node in ray.util.placement_group_table(group)["bundles_to_node_id"].values()}


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
    return [node["Resources"].get(kind, 0.0) for node in ray_machines.machines() if node["Alive"]]


def _require(kind: str, pools: Sequence[tuple[str, ResourcePool]], engine_gpus: Sequence[int] = ()) -> None:
    """Compare what pools and engines need with what the cluster has, busy or not.

    Raises:
        ConfigError: with the sum: `4 ranks need 4 GPUs (global_pool 3 + critic 1), but the Ray cluster has 2`.
    """
    machines = _machines(kind)
    ranks, engines = sum(pool.world_size for _, pool in pools), sum(engine_gpus)
    need = ranks + engines
    if need > sum(machines):
        named = [f"{name} {pool.world_size}" for name, pool in pools] + ([f"engines {engines}"] if engines else [])
        parts = f" ({' + '.join(named)})" if len(named) > 1 else ""
        who = f"{ranks} ranks" + (f" and {len(engine_gpus)} engines" if engines else "")
        raise ConfigError(
            f"{who} need {need} {kind}s{parts}, but the Ray cluster has {sum(machines):g}: "
            "lower trainer.nnodes, trainer.n_gpus_per_node or trainer.resource_pools, or use a larger cluster"
        )
    if engines and max(engine_gpus) > max(machines):
        raise ConfigError(
            f"an engine needs a machine with {max(engine_gpus)} {kind}s, but the largest of the Ray cluster has "
            f"{max(machines):g}: lower actor_rollout_ref.rollout.tensor_model_parallel_size"
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
