"""The limits of micro-batches, from the configuration, for one model on one device."""

from __future__ import annotations

import torch

from agentrl.config.actor import FSDPConfig, LogProbSection, MicroBatchSection
from agentrl.config.reward_model import ClassifierSection
from agentrl.config.rollout import RolloutConfig
from agentrl.errors import ConfigError
from agentrl.workers.micro_batch_plan import MicroLimits
from agentrl.workers.token_nets import RowShape

OVERHEAD_TOKENS = {"cpu": 256, "cuda": 1024}
"""Cost of a forward and backward pass besides its tokens, in tokens."""


def update_limits(
    section: MicroBatchSection, device: torch.device, shape: RowShape, key: str, fsdp: FSDPConfig
) -> MicroLimits:
    """The micro-batch limits of an update.

    Raises:
        ConfigError: neither tokens nor rows are given.
    """
    rows = None if section.use_dynamic_bsz else section.ppo_micro_batch_size_per_gpu
    if rows is None and not section.use_dynamic_bsz:
        raise ConfigError(f"{key}.use_dynamic_bsz=false needs {key}.ppo_micro_batch_size_per_gpu")
    return _limits(section.ppo_max_token_len_per_gpu, rows, device, shape, fsdp)


def log_prob_limits(
    section: LogProbSection | RolloutConfig, device: torch.device, shape: RowShape, fsdp: FSDPConfig
) -> MicroLimits:
    """The micro-batch limits of log-probs without a gradient.

    Raises:
        ConfigError: neither tokens nor rows are given.
    """
    rows = None if section.log_prob_use_dynamic_bsz else section.log_prob_micro_batch_size_per_gpu
    if rows is None and not section.log_prob_use_dynamic_bsz:
        raise ConfigError("log_prob_use_dynamic_bsz=false needs log_prob_micro_batch_size_per_gpu beside it")
    return _limits(section.log_prob_max_token_len_per_gpu, rows, device, shape, fsdp)


def reward_model_limits(section: ClassifierSection, device: torch.device, shape: RowShape) -> MicroLimits:
    """The micro-batch limits of a reward model; `check_reward_model` has seen that there are some."""
    rows = None if section.use_dynamic_bsz else section.micro_batch_size_per_gpu
    return _limits(section.forward_max_token_len_per_gpu, rows, device, shape, section.fsdp_config)


def _limits(
    max_tokens: int, max_rows: int | None, device: torch.device, shape: RowShape, fsdp: FSDPConfig
) -> MicroLimits:
    """The ranks that share rows each hold their part of the tokens, so together they take as many times more."""
    max_tokens *= fsdp.ulysses_sequence_parallel_size
    packed, share = shape is RowShape.PACKED, shape is RowShape.SHARED_PROMPTS
    return MicroLimits(max_tokens, max_rows, packed, share, OVERHEAD_TOKENS[device.type])
