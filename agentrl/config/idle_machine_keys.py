"""Keys of micro-batches, precision and ranks that cannot act in a run, and why; part of `idle_keys.IDLE_KEYS`."""

from __future__ import annotations

from typing import Any

from agentrl.config.actor import ActorConfig, LogProbSection
from agentrl.config.base import RowsDecide
from agentrl.config.idle import Idle, value_at
from agentrl.config.machine import uses_cuda
from agentrl.config.resource_pools import declares_default, pools_in_use, roles_of
from agentrl.config.rollout import RolloutConfig
from agentrl.config.root import CriticConfig, RunConfig
from agentrl.config.trainer import DEFAULT_POOL

_AR = "actor_rollout_ref."
_ROLLOUT = f"{_AR}rollout."


def rows_or_tokens(section: str, kind: type[RowsDecide], tokens: str) -> tuple[Idle[Any], ...]:
    """Rows of a micro-batch while tokens are counted, and the other way round."""
    dynamic = f"{section}.{kind.dynamic_key}"
    return (
        Idle((f"{section}.{kind.rows_key}",), lambda run: value_at(run, dynamic), f"{dynamic} is true"),
        Idle(
            (f"{section}.{tokens}",),
            lambda run: not value_at(run, dynamic),
            f"{dynamic} is false, so {kind.rows_key} counts",
        ),
    )


def _one_rank(run: RunConfig) -> bool:
    return max(pool.world_size for pool in pools_in_use(run)) == 1


def _no_default_pool(run: RunConfig) -> bool:
    return declares_default(run) or all(pool.name != DEFAULT_POOL for pool in pools_in_use(run))


def _no_other_pool(run: RunConfig) -> bool:
    return not run.trainer.resource_pools.keys() & {pool.name for pool in pools_in_use(run)}


def _precision(section: str, model: str) -> tuple[Idle[RunConfig], ...]:
    """Weights that learn are float32: `model_dtype` says only what `compute_dtype: auto` is on the CPU.

    With LoRA in the section `model` it is also the data type of the frozen weights.
    """
    key, compute = f"{section}.fsdp_config.model_dtype", f"{section}.fsdp_config.compute_dtype"
    return (
        Idle(
            (key,),
            lambda run: value_at(run, compute) != "auto" and not value_at(run, model).adapts,
            f"weights that learn are float32, and the computation is {{{compute}}} ({compute})",
        ),
        Idle(
            (key,),
            lambda run: uses_cuda(run) and not value_at(run, model).adapts,
            f"weights that learn are float32, and {compute} is auto, which is bfloat16 on a GPU",
        ),
    )


OF_MICRO_BATCHES: tuple[Idle[RunConfig], ...] = (
    *rows_or_tokens(f"{_AR}actor", ActorConfig, "ppo_max_token_len_per_gpu"),
    *rows_or_tokens("critic", CriticConfig, "ppo_max_token_len_per_gpu"),
    *rows_or_tokens(f"{_AR}rollout", RolloutConfig, "log_prob_max_token_len_per_gpu"),
    *rows_or_tokens(f"{_AR}ref", LogProbSection, "log_prob_max_token_len_per_gpu"),
)
_OF_REWARD_POOL = tuple(f"reward_model.{name}" for name in ("enable_resource_pool", "nnodes", "n_gpus_per_node"))
OF_POOLS: tuple[Idle[RunConfig], ...] = (
    Idle(
        ("trainer.resource_pools", "trainer.role_pools.*", *_OF_REWARD_POOL),
        lambda run: run.trainer.backend == "local",
        "trainer.backend is local: every role runs in this process",
    ),
    *(
        Idle(
            (f"trainer.role_pools.{role}",),
            lambda run, role=role: role not in roles_of(run),  # type: ignore[misc]
            f"the run has no {name}",
        )
        for role, name in (("ref", "reference policy"), ("critic", "critic"), ("reward_model", "reward model"))
    ),
    Idle(("trainer.resource_pools",), _no_other_pool, "the run has none of the roles that are in these pools"),
    Idle(
        ("trainer.nnodes", "trainer.n_gpus_per_node"),
        _no_default_pool,
        "no role is in the pool of these keys, global_pool (trainer.resource_pools, trainer.role_pools)",
    ),
)
OF_THE_MACHINE: tuple[Idle[RunConfig], ...] = (
    *OF_POOLS,
    Idle(
        ("*.fsdp_config.*_offload", "*.fsdp_config.offload_policy", "*.model.use_remove_padding"),
        lambda run: not uses_cuda(run),
        "training runs on the CPU",
    ),
    Idle(
        (f"{_AR}ref.fsdp_config.optimizer_offload",),
        lambda run: True,
        "the reference policy does not learn, so it has no optimizer",
    ),
    *(
        Idle(
            (f"{section}.fsdp_config.*_offload",),
            lambda run, key=f"{section}.fsdp_config.offload_policy": value_at(run, key),  # type: ignore[misc]
            f"{section}.fsdp_config.offload_policy is true: FSDP2 keeps all of them in host memory",
        )
        for section in (f"{_AR}actor", f"{_AR}ref", "critic", "reward_model")
    ),
    Idle(
        (
            "*.fsdp_config.reshard_after_forward",
            "*.fsdp_config.fsdp_size",
            f"{_AR}nccl_timeout",
            "trainer.balance_batch",
        ),
        _one_rank,
        "one rank holds the whole model and all rows, and waits for no other",
    ),
    *_precision(f"{_AR}actor", f"{_AR}model"),
    *_precision("critic", "critic.model"),
    Idle(
        (f"{_ROLLOUT}agent.num_workers", "ray_init.num_cpus", "ray_init.timeline_json_file"),
        lambda run: run.trainer.backend == "local",
        "trainer.backend is local: everything runs in this process",
    ),
)
