"""Tensor-parallel sizes that an engine can have: by the model's heads, and by GPUs and ranks of a machine."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.config.machine import OWN_ENGINES
from agentrl.config.resource_pools import pool_of
from agentrl.config.root import RunConfig
from agentrl.placement.cluster import Cluster
from agentrl.placement.layout import Mode
from agentrl.placement.model_shape import ModelShape

_KEY = "actor_rollout_ref.rollout.tensor_model_parallel_size"


def tp_of(config: RunConfig) -> int:
    """GPUs of an engine."""
    rollout = config.actor_rollout_ref.rollout
    return 1 if rollout.name in OWN_ENGINES else rollout.tensor_model_parallel_size


def size_problems(config: RunConfig, shape: ModelShape | None, cluster: Cluster, mode: Mode) -> list[str]:
    """Why engines of this size cannot be; all reasons in one sentence, with the sizes that can.

    Args:
        config: the run.
        shape: of the model; None: not known, so that only GPUs count.
        cluster: of the plan.
        mode: colocated engines take whole ranks of a machine.
    """
    tp = tp_of(config)
    reasons = list(_reasons(tp, config, shape, cluster, mode))
    if not reasons:
        return []
    fits = [size for size in range(1, cluster.largest + 1) if not list(_reasons(size, config, shape, cluster, mode))]
    return [f"{_KEY}: got {tp}, but {', and '.join(reasons)}: wanted {listed(fits) if fits else 'another model'}"]


def _reasons(tp: int, config: RunConfig, shape: ModelShape | None, cluster: Cluster, mode: Mode) -> Iterator[str]:
    if tp == 1:
        return
    if tp > cluster.largest:
        gpus = "1 GPU" if cluster.largest == 1 else f"{cluster.largest} GPUs"
        yield f"an engine is on one machine, and the largest of {cluster.source} has {gpus}"
    elif mode == "colocated":
        pool = pool_of(config, "actor")
        uneven = next((count for count in pool.process_on_nodes if count % tp), None)
        if uneven is not None:
            yield f"it does not divide the {uneven} ranks of a machine ({uneven} / {tp} = {uneven / tp:.2f})"
    if shape is None:
        return
    if shape.heads % tp:
        yield f"the model has {shape.heads} attention heads ({shape.heads} / {tp} = {shape.heads / tp:.2f})"
    kv = shape.kv_heads
    if kv % tp and tp % kv:  # fewer heads than GPUs are repeated, evenly
        yield f"it has {kv} heads of keys and values, which neither are a multiple of {tp} nor divide it"
    width = shape.expert_width if shape.num_experts else shape.intermediate
    if width % tp:
        what = "columns in an expert" if shape.num_experts else "columns in its MLPs"
        yield f"it has {width} {what} ({width} / {tp} = {width / tp:.2f})"


def divisors(count: int) -> list[int]:
    """Every whole number that divides `count`."""
    return [n for n in range(1, count + 1) if count % n == 0]


def listed(sizes: list[int]) -> str:
    """`1, 2 or 4`."""
    return str(sizes[0]) if len(sizes) == 1 else f"{', '.join(map(str, sizes[:-1]))} or {sizes[-1]}"
