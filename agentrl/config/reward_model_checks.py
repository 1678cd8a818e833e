"""What a reward model needs, and which of its keys cannot act; part of `checks.CHECKS` and `idle_keys.IDLE_KEYS`."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.config.idle import Idle
from agentrl.config.idle_machine_keys import rows_or_tokens
from agentrl.config.root import RewardModelConfig, RunConfig

_SIZES = ("use_dynamic_bsz", "forward_max_token_len_per_gpu", "micro_batch_size_per_gpu", "max_length", "truncation")
OF_REWARD_MODELS = (
    *("reward_model.enable", "reward_model.model.*", "reward_model.fsdp_config.*", "reward_model.combine.model"),
    *(f"reward_model.{name}" for name in (*_SIZES, "enable_resource_pool", "nnodes", "n_gpus_per_node")),
)
"""The keys of a reward model."""


def check_reward_model(config: RunConfig) -> Iterator[str]:
    """A reward model has a folder, a weight and a size of its micro-batches."""
    section = config.reward_model
    if not section.enable:
        return
    if not section.model.path:
        yield "reward_model.model.path: not given, wanted the folder of a classifier: reward_model.enable is true"
    if section.combine.model == 0:
        yield (
            "reward_model.combine.model: got 0, so that the reward model's score never counts: give it a weight, or "
            "set reward_model.enable=false"
        )
    if not section.use_dynamic_bsz and section.micro_batch_size_per_gpu is None:
        key = "reward_model.micro_batch_size_per_gpu"
        yield f"{key}: not given, but needed because reward_model.use_dynamic_bsz is false"


IDLE_REWARD_MODEL_KEYS: tuple[Idle[RunConfig], ...] = (
    Idle(
        OF_REWARD_MODELS,
        lambda run: not run.reward_model.enable,
        "reward_model.enable is false",
        but=("reward_model.enable",),
    ),
    Idle(
        ("reward_model.model.chat_template",),
        lambda run: run.reward_model.model.input_tokenizer is None,
        "reward_model.model.input_tokenizer is null, so the reward model reads the policy's tokens as they are",
    ),
    Idle(
        ("reward_model.nnodes", "reward_model.n_gpus_per_node"),
        lambda run: not run.reward_model.enable_resource_pool,
        "reward_model.enable_resource_pool is false",
    ),
    Idle(
        ("reward_model.fsdp_config.optimizer_offload",),
        lambda run: True,
        "the reward model does not learn, so it has no optimizer",
    ),
    *rows_or_tokens("reward_model", RewardModelConfig, "forward_max_token_len_per_gpu"),
)
