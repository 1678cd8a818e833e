"""What a run will start and where: what `agentrl plan` prints, and the second half of `agentrl train --dry-run`."""

from __future__ import annotations

import math
import os

from agentrl.cli.plan_machines import PlanLine, machine_lines
from agentrl.config import RunConfig
from agentrl.config.parallel_checks import mesh_of
from agentrl.config.resource_pools import Pool, pools_in_use, roles_of, total_ranks
from agentrl.placement.layout import RunPlacement
from agentrl.placement.lengths import Lengths
from agentrl.trainer.inputs import RunInputs, lora_counts


def plan_lines(config: RunConfig, placement: RunPlacement, inputs: RunInputs | None = None) -> list[PlanLine]:
    """A topic and a sentence for each part of the run.

    Args:
        config: the run.
        placement: where its ranks and engines are.
        inputs: its checked rows; None: they were not read.
    """
    lines = [] if inputs is None else _rows(config, inputs)
    lines += [*_training(config, placement, inputs), *_engines(config, placement)]
    lines += machine_lines(config, placement, Lengths.of_prompts(config, inputs.prompt_lengths if inputs else []))
    return [*lines, *_conversations(config), *_run(config)]


def _rows(config: RunConfig, inputs: RunInputs) -> list[PlanLine]:
    """Rows and batch arithmetic."""
    data, actor, rollout = config.data, config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    per_epoch = inputs.loader.steps_per_epoch
    updates = math.ceil(data.train_batch_size / actor.ppo_mini_batch_size) * actor.ppo_epochs
    lines = [
        ("train rows", f"{inputs.loader.num_rows}, {_count(per_epoch, 'step')} per epoch"),
        ("steps", "none, only validation" if config.trainer.val_only else str(inputs.total_steps)),
        (
            "a step",
            f"{data.train_batch_size} prompts x {_count(rollout.n, 'rollout')} = {data.train_batch_size * rollout.n} "
            f"trajectories, then {_count(updates, 'optimizer step')} of {actor.ppo_mini_batch_size} prompts",
        ),
    ]
    if (shown := inputs.pictures.sentence) is not None:
        lines.append(("pictures", shown))
    if inputs.val_samples:
        lines.append(("val rows", f"{len(inputs.val_samples)}, {_count(rollout.val_kwargs.n, 'rollout')} each"))
    return lines


def _training(config: RunConfig, placement: RunPlacement, inputs: RunInputs | None) -> list[PlanLine]:
    trainer = config.trainer
    device = "cuda" if placement.on_gpus else "cpu"
    actor, lora = config.actor_rollout_ref.actor, [] if inputs is None else _lora(config)
    dtype = actor.fsdp_config.compute_dtype
    dtype = ("bfloat16" if device == "cuda" else actor.fsdp_config.model_dtype) if dtype == "auto" else dtype
    pools = pools_in_use(config)
    model = ("model", config.actor_rollout_ref.model.path)
    if trainer.backend == "local":
        roles = ", ".join(_ROLES[role] for role in roles_of(config))
        return [model, *lora, ("training", f"1 rank in this process, {device}, FSDP2, {dtype}; {roles}")]
    if len(pools) == 1:
        return [
            model,
            *lora,
            ("training", f"{_where(pools[0], ' in Ray actors')}, {device}, FSDP2, {dtype}; {_who(config, pools[0])}"),
        ]
    ranks = f"{' + '.join(str(pool.world_size) for pool in pools)} = {_count(total_ranks(config), 'rank')}"
    return [
        model,
        *lora,
        ("training", f"{len(pools)} pools, {ranks} in Ray actors, {device}, FSDP2, {dtype}"),
        *((f"pool {pool.name}", f"{_where(pool)}; {_who(config, pool)}") for pool in pools),
    ]


def _lora(config: RunConfig) -> list[PlanLine]:
    """What learns in each model with adapters."""
    lines = [("LoRA", f"{section.removesuffix('.model')}: {counts}") for section, counts in lora_counts(config).items()]
    return [*lines, *([("reference", "the actor without its adapters")] if config.has_adapters_off else [])]


_ROLES = {"actor": "actor", "ref": "reference", "critic": "critic", "reward_model": "reward model"}


def _where(pool: Pool, how: str = "") -> str:
    """`3 ranks on 2 machines`."""
    return f"{_count(pool.world_size, 'rank')}{how} on {_count(len(pool.process_on_nodes), 'machine')}"


def _who(config: RunConfig, pool: Pool) -> str:
    """`actor (shard 2 x tp 2), critic`."""
    meshes = {role: mesh_of(config, role) for role in pool.roles}
    return ", ".join(_ROLES[role] + (f" ({mesh})" if mesh else "") for role, mesh in meshes.items())


def _engines(config: RunConfig, placement: RunPlacement) -> list[PlanLine]:
    server = config.actor_rollout_ref.rollout.server
    if server.addresses:
        return [("engines", f"{', '.join(server.addresses)} (already running)")]
    ports = "free ports" if server.port is None else f"ports from {server.port}"
    started = _count(len(placement.engines), f"{placement.engine} server")
    if not placement.on_gpus:
        return [("engines", f"{started} started on {server.host}, {ports}")]
    if not placement.engines:
        return [("engines", f"no {placement.engine} server has a place: see below")]
    size = placement.engines[0].tp
    each = f" of {size} GPUs" if size > 1 else ""
    shared = next((engine.pool for engine in placement.engines if engine.pool is not None), None)
    where = "GPUs of their own" if shared is None else f"the GPUs of {shared}, in turns"
    return [("engines", f"{started}{each} on {where}, {ports}")]


def _conversations(config: RunConfig) -> list[PlanLine]:
    rollout, limits = config.actor_rollout_ref.rollout, config.actor_rollout_ref.rollout.multi_turn
    prompt = rollout.prompt_length or config.data.max_prompt_length
    response = rollout.response_length or config.data.max_response_length
    workers = _count(rollout.agent.num_workers, "worker")
    lines = [
        ("agent loops", f"{workers}, at most {rollout.agent.max_in_flight} trajectories at a time"),
        ("tokens", f"prompt up to {prompt}, response up to {response}, observations included"),
    ]
    lines += [("tools", limits.tool_config_path)] if limits.tool_config_path else []
    lines += [("interactions", limits.interaction_config_path)] if limits.interaction_config_path else []
    custom = config.custom_reward_function
    score = f"{custom.name} in {custom.path}" if custom.path else "by data_source"
    weights = config.reward_model.combine
    manager = f"{config.reward_manager_name} manager"
    if config.reward_manager_name == "prime" and not custom.path:
        manager = "naive manager (prime has processes for a custom_reward_function alone)"
    parts = [f"{manager}, score function {score}"] if weights.outcome else []
    if config.reward_model.enable:
        parts.append(f"{weights.model:g} x the score of the reward model {config.reward_model.model.path}")
    judge = config.reward_model.judge
    if config.reward_model.has_judge:
        low, high = judge.score_range
        parts.append(f"{weights.judge:g} x {low:g} to {high:g} of the judge {judge.model} at {judge.base_url}")
    return [*lines, ("reward", " + ".join(parts) or "turns and tool calls alone")]


def _run(config: RunConfig) -> list[PlanLine]:
    trainer = config.trainer
    saves = f"every {_count(trainer.save_freq, 'step')}" if trainer.save_freq > 0 else "never"
    tests = [f"every {_count(trainer.test_freq, 'step')}"] if trainer.test_freq > 0 else []
    if trainer.val_before_train and config.data.val_files:
        tests.insert(0, "before the first step")
    return [
        ("run folder", os.path.abspath(trainer.default_local_dir)),
        ("checkpoints", saves),
        ("validation", ", ".join(tests) or "never"),
        ("loggers", ", ".join(trainer.logger)),
    ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
