"""One training step of a model: epochs, mini-batches, micro-batches, and the metrics over all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from agentrl.config.actor import MicroBatchSection
from agentrl.data_proto import DataProto
from agentrl.errors import ConfigError
from agentrl.workers.collectives import sum_over_ranks
from agentrl.workers.fsdp_model import FSDPModel
from agentrl.workers.metric_sums import MetricSums
from agentrl.workers.micro_batches import MicroBatch, MicroLimits, RowLayout
from agentrl.workers.mini_batches import MiniBatchPlan
from agentrl.workers.policy_loss import LossCounts

MicroLoss = Callable[[DataProto, LossCounts, MetricSums, MicroBatch, Any], torch.Tensor]
"""(rank's batch, counts of the mini-batch, metrics to add to, micro-batch, what the net returned) -> share of the loss."""

OVERHEAD_TOKENS = {"cpu": 128, "cuda": 1024}
"""What a forward and backward pass costs beside its tokens, in tokens."""


def update_limits(section: MicroBatchSection, device: torch.device, *, packed: bool, key: str) -> MicroLimits:
    """The micro-batch limits of an update.

    Raises:
        ConfigError: neither tokens nor rows are given.
    """
    rows = None if section.use_dynamic_bsz else section.ppo_micro_batch_size_per_gpu
    if rows is None and not section.use_dynamic_bsz:
        raise ConfigError(f"{key}.use_dynamic_bsz=false needs {key}.ppo_micro_batch_size_per_gpu")
    return MicroLimits(section.ppo_max_token_len_per_gpu, rows, packed, OVERHEAD_TOKENS[device.type])


def run_update(
    model: FSDPModel,
    batch: DataProto,
    plan: MiniBatchPlan,
    limits: MicroLimits,
    loss: MicroLoss,
    lr: float,
    *forward_args: Any,
) -> dict[str, float]:
    """Take one optimizer step per mini-batch and epoch.

    Returns:
        what `loss` collected, averaged; `grad_norm` over the steps taken; `lr`; `skipped_steps`: how many steps were
        left out because their gradient was not finite. The same on every rank.
    """
    batch = batch.to(model.device)
    layout = RowLayout(batch)
    tokens, sequences = layout.mask.sum(1), layout.mask.any(1)
    sums = MetricSums()
    skipped = 0
    for epoch in range(plan.epochs):
        for rows in plan.epoch(epoch):
            own = [float(tokens[rows].sum()), float(sequences[rows].sum())]
            num_tokens, num_sequences = sum_over_ranks(own)
            if num_tokens == 0:
                continue
            counts = LossCounts(int(num_tokens), int(num_sequences))
            report = model.update(
                layout.micro_batches(rows, limits),
                lambda micro, outputs, counts=counts: loss(batch, counts, sums, micro, outputs),
                lr,
                *forward_args,
            )
            if report.taken:
                sums.add("grad_norm", report.grad_norm)
            else:
                skipped += 1
    return {**sums.reduce(), "lr": lr, "skipped_steps": float(skipped)}
