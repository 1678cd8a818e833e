"""What a policy loss compares the log-probs of a micro-batch with: old log-probs, advantages, weights and a mask."""

from __future__ import annotations

import torch

from agentrl.algorithms import LossShare, aggregate_loss
from agentrl.config.rollout_correction import RolloutCorrectionConfig
from agentrl.data_proto import DataProto
from agentrl.workers.bypass_correction import BypassCorrection
from agentrl.workers.collectives import sum_over_ranks
from agentrl.workers.fsdp_model import FSDPModel
from agentrl.workers.micro_batches import MicroBatch, MicroBatches

Terms = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class LossTerms:
    """The terms of every micro-batch of one update.

    Args:
        batch: this rank's rows.
        correction: `algorithm.rollout_correction`; None: nothing is corrected here.
        own_log_probs: (B, R) zeros on the CPU that receive the log-probs of the update, which are its old ones; None:
            the batch has `old_log_probs`.
    """

    def __init__(
        self, batch: DataProto, correction: RolloutCorrectionConfig | None, own_log_probs: torch.Tensor | None
    ) -> None:
        self._batch, self._own = batch, own_log_probs
        # On the device until the update ends: a copy to host memory waits for the GPU.
        self._seen = None if own_log_probs is None else own_log_probs.to(batch.batch["advantages"].device, copy=True)
        self._bypass = BypassCorrection.of(correction)
        self._kept = torch.zeros(())

    def begin(self, model: FSDPModel, micros: MicroBatches) -> None:
        """Start a mini-batch. A collective call."""
        if self._bypass is not None:
            self._kept = torch.zeros((), device=model.device)
            self._bypass.begin(model, micros, self._batch)

    def __call__(
        self, micro: MicroBatch, log_probs: torch.Tensor, share: LossShare
    ) -> tuple[Terms, torch.Tensor | None, dict[str, torch.Tensor]]:
        """Old log-probs, advantages and mask (b, R) for the policy loss; importance weights; shares of metrics."""
        old = micro.column(self._batch, "old_log_probs") if self._seen is None else self._keep(micro, log_probs)
        weights, trained = micro.optional_column(self._batch, "rollout_is_weights"), micro.mask
        shares = {}
        if self._bypass is not None:
            weights, trained = self._bypass(log_probs, old, micro.mask)
            self._kept = self._kept + trained.sum()
            rejected = (micro.mask & ~trained).float()
            shares["rollout_rs_masked_fraction"] = aggregate_loss(rejected, micro.mask, "token-mean", **share)
        return (old, micro.column(self._batch, "advantages"), trained), weights, shares

    def finish(self) -> None:
        """Give the update's own log-probs to who asked for them."""
        if self._own is not None and self._seen is not None:
            self._own.copy_(self._seen)

    def rejects_all(self) -> bool:
        """Whether the mini-batch that was just seen has no token left on any rank. A collective call."""
        return self._bypass is not None and not sum_over_ranks([float(self._kept)])[0]

    def _keep(self, micro: MicroBatch, log_probs: torch.Tensor) -> torch.Tensor:
        assert self._seen is not None
        old = log_probs.detach()
        self._seen[micro.rows, : old.shape[1]] = old
        return old
