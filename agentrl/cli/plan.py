"""What a run will start where, from its configuration alone: the second half of `agentrl train --dry-run`."""

from __future__ import annotations

import math
import os

from agentrl.config import RunConfig
from agentrl.data.dataset import RLHFDataset

Line = tuple[str, str]


def plan(config: RunConfig) -> list[Line]:
    """Topic and sentence per part of the run.

    Raises:
        DataError: a dataset file cannot be used.
    """
    return [
        *_rows(config),
        *_batches(config),
        *_training(config),
        *_engines(config),
        *_conversations(config),
        *_run(config),
    ]


def _rows(config: RunConfig) -> list[Line]:
    data, lines = config.data, []
    if data.train_files:
        dataset = RLHFDataset(data.train_files, data, data.train_max_samples)
        lines.append(("train rows", f"{len(dataset)} in {_count(len(dataset.files), 'file')}"))
    if data.val_files:
        dataset = RLHFDataset(data.val_files, data, data.val_max_samples)
        n = config.actor_rollout_ref.rollout.val_kwargs.n
        lines.append(
            ("val rows", f"{len(dataset)} in {_count(len(dataset.files), 'file')}, {_count(n, 'rollout')} each")
        )
    return lines


def _batches(config: RunConfig) -> list[Line]:
    """Batch arithmetic. The number of steps is that of the rows in the files; filtering long prompts may lower it."""
    data, actor, trainer = config.data, config.actor_rollout_ref.actor, config.trainer
    n = config.actor_rollout_ref.rollout.n
    updates = math.ceil(data.train_batch_size / actor.ppo_mini_batch_size) * actor.ppo_epochs
    text = (
        f"{data.train_batch_size} prompts x {_count(n, 'rollout')} = {data.train_batch_size * n} trajectories, "
        f"{_count(updates, 'optimizer step')} of {min(actor.ppo_mini_batch_size, data.train_batch_size)} prompts"
    )
    lines = [("step", text)]
    if data.train_files:
        rows = len(RLHFDataset(data.train_files, data, data.train_max_samples))
        per_epoch = rows // data.train_batch_size
        total = trainer.total_training_steps or per_epoch * trainer.total_epochs
        lines.append(("steps", f"{total} ({per_epoch} per epoch)"))
    return lines


def _training(config: RunConfig) -> list[Line]:
    trainer = config.trainer
    device = _device(config)
    ranks = trainer.nnodes * trainer.n_gpus_per_node
    where = "this process" if trainer.backend == "local" else f"Ray actors on {_count(trainer.nnodes, 'machine')}"
    actor = config.actor_rollout_ref.actor
    roles = ["actor"]
    if actor.use_kl_loss or config.algorithm.use_kl_in_reward:
        roles.append("reference")
    if config.algorithm.adv_estimator == "gae":
        roles.append("critic")
    dtype = actor.fsdp_config.compute_dtype
    dtype = ("bfloat16" if device == "cuda" else "float32") if dtype == "auto" else dtype
    model = config.actor_rollout_ref.model.path
    return [
        ("model", model),
        ("training", f"{_count(ranks, 'rank')} in {where}, {device}, FSDP2, {dtype}; {', '.join(roles)}"),
    ]


def _engines(config: RunConfig) -> list[Line]:
    rollout = config.actor_rollout_ref.rollout
    server = rollout.server
    if server.addresses:
        return [("engines", f"{', '.join(server.addresses)} (run already)")]
    name = rollout.name
    if name == "auto":
        name = "sglang" if _device(config) == "cuda" and _has_sglang() else "embedded"
    ports = "free ports" if server.port is None else f"ports from {server.port}"
    return [("engines", f"{_count(server.launch, name + ' server')} started on {server.host}, {ports}")]


def _conversations(config: RunConfig) -> list[Line]:
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
    return [*lines, ("reward", f"{config.reward_model.reward_manager} manager, score function {score}")]


def _run(config: RunConfig) -> list[Line]:
    trainer = config.trainer
    saves = f"every {_count(trainer.save_freq, 'step')}" if trainer.save_freq > 0 else "never"
    tests = f"every {_count(trainer.test_freq, 'step')}" if trainer.test_freq > 0 else "never"
    return [
        ("run folder", os.path.abspath(trainer.default_local_dir)),
        ("checkpoints", saves),
        (
            "validation",
            tests + (", and before the first" if trainer.val_before_train and config.data.val_files else ""),
        ),
        ("loggers", ", ".join(trainer.logger)),
    ]


def _device(config: RunConfig) -> str:
    if config.trainer.device != "auto":
        return config.trainer.device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _has_sglang() -> bool:
    import importlib.util

    return importlib.util.find_spec("sglang") is not None


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
