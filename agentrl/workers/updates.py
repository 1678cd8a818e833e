"""One training step of a model: epochs, mini-batches, micro-batches, and the metrics over all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from agentrl.config.actor import MicroBatchSection
from agentrl.data_proto import DataProto
from agentrl.errors import ConfigError
from agentrl.workers.collectives import gather_objects, sum_over_ranks
from agentrl.workers.fsdp_model import FSDPModel
from agentrl.workers.micro_batch_plan import MicroLimits
from agentrl.workers.micro_batches import MicroBatch, RowLayout
from agentrl.workers.mini_batches import MiniBatchPlan
from agentrl.workers.token_nets import RowShape


class MetricSums:
    """Sums shares by name: a micro-batch's contributions to the mean over its mini-batch on all ranks.

    Shares stay on their device until `mean`, so that adding one never waits for a GPU.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float | torch.Tensor] = {}

    def add(self, name: str, share: float | torch.Tensor) -> None:
        """Add one share."""
        if isinstance(share, torch.Tensor):
            share = share.detach()
        self._sums[name] = self._sums.get(name, 0.0) + share

    def mean(self, mini_batches: int) -> dict[str, float]:
        """The sums over all ranks divided by the number of mini-batches; equal on every rank. A collective call."""
        ranks: list[dict[str, float]] = gather_objects({name: float(total) for name, total in self._sums.items()})
        names = dict.fromkeys(name for rank in ranks for name in rank)
        return {name: sum(rank.get(name, 0.0) for rank in ranks) / max(1, mini_batches) for name in names}


@dataclass(frozen=True, slots=True)
class LossContext:
    """What the loss of a micro-batch needs besides the net's output.

    Attributes:
        batch: this rank's rows.
        num_tokens: trained tokens of the mini-batch on all ranks; every loss is divided by global counts, so
            micro-batches and ranks never change the result.
        num_sequences: its rows with a trained token.
        metrics: where shares of metrics are added.
    """

    batch: DataProto
    num_tokens: int
    num_sequences: int
    metrics: MetricSums


MicroLoss = Callable[[LossContext, MicroBatch, Any], torch.Tensor]
"""(context, micro-batch, what the net returned) -> this micro-batch's share of the loss."""

OVERHEAD_TOKENS = {"cpu": 256, "cuda": 1024}
"""Cost of a forward and backward pass besides its tokens, in tokens."""


def update_limits(section: MicroBatchSection, device: torch.device, shape: RowShape, key: str) -> MicroLimits:
    """The micro-batch limits of an update.

    Raises:
        ConfigError: neither tokens nor rows are given.
    """
    rows = None if section.use_dynamic_bsz else section.ppo_micro_batch_size_per_gpu
    if rows is None and not section.use_dynamic_bsz:
        raise ConfigError(f"{key}.use_dynamic_bsz=false needs {key}.ppo_micro_batch_size_per_gpu")
    return make_limits(section.ppo_max_token_len_per_gpu, rows, device, shape)


def make_limits(max_tokens: int, max_rows: int | None, device: torch.device, shape: RowShape) -> MicroLimits:
    """Limits of a model that takes rows in `shape` on `device`."""
    packed, share = shape is RowShape.PACKED, shape is RowShape.SHARED_PROMPTS
    return MicroLimits(max_tokens, max_rows, packed, share, OVERHEAD_TOKENS[device.type])


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
        The metrics of `loss` as means over the mini-batches; `grad_norm`, the mean over the steps taken; `lr`;
        `skipped_steps`: the number of steps skipped because their gradient was not finite. The same on every rank.
    """
    batch = batch.to(model.device)
    layout = RowLayout(batch, "loss_mask")
    tokens, sequences = layout.mask.sum(1), layout.mask.any(1)
    metrics, norms, skipped = MetricSums(), list[float](), 0
    for rows in (rows for epoch in range(plan.epochs) for rows in plan.epoch(epoch)):
        counts = sum_over_ranks([float(tokens[rows].sum()), float(sequences[rows].sum())])
        if counts[0] == 0:
            continue
        context = LossContext(batch, int(counts[0]), int(counts[1]), metrics)
        micros = layout.micro_batches(rows, limits)
        report = model.update(micros, partial(loss, context), lr, *forward_args)
        if report.taken:
            norms.append(report.grad_norm)
        else:
            skipped += 1
    means = metrics.mean(len(norms) + skipped)
    return {**means, "grad_norm": sum(norms) / max(1, len(norms)), "lr": lr, "skipped_steps": float(skipped)}
