"""Importance weights and rejections by the policy that is being trained, where old log-probs are the rollout's.

With `algorithm.rollout_correction.bypass_old_log_prob` nobody has computed the trainer's log-probs before the update,
so the ratio policy / rollout is known only in its forward passes. A rejected token adds nothing to the policy loss; the
mini-batch's counts stay those of all its tokens, since they are needed before the first pass. KL and entropy see it.
"""

from __future__ import annotations

import torch

from agentrl.algorithms import Rejection, rollout_correction
from agentrl.algorithms.corrections import mean_weight, weight_sums
from agentrl.config.rollout_correction import RolloutCorrectionConfig
from agentrl.data_proto import DataProto
from agentrl.workers.collectives import sum_over_ranks
from agentrl.workers.fsdp_model import FSDPModel
from agentrl.workers.micro_batches import MicroBatches
from agentrl.workers.token_stats import EntropyMode

REINFORCE = "gpg"
"""The policy loss of `loss_type: reinforce`: `-A log pi`, times the importance weight."""


class BypassCorrection:
    """Corrects the micro-batches of one update.

    Args:
        config: with `bypass_old_log_prob`.
    """

    def __init__(self, config: RolloutCorrectionConfig) -> None:
        rules = [Rejection(*rule) for rule in config.rules()] if config.kinds else []
        self._options = {**config.options(), "is_batch_normalize": False, "rejections": rules, "measure": False}
        self._weighs = config.loss_type == "reinforce" and config.is_level is not None
        self._normalizes = self._weighs and config.is_batch_normalize
        self._level = config.is_level or ""
        self._divisor = 1.0

    @classmethod
    def of(cls, config: RolloutCorrectionConfig | None) -> BypassCorrection | None:
        """None: the run has nothing to correct in its update."""
        if config is None or not config.bypass_old_log_prob or not config.corrects:
            return None
        return cls(config)

    def begin(self, model: FSDPModel, micros: MicroBatches, batch: DataProto) -> None:
        """Look at a whole mini-batch, of which this rank has `micros`, where weights have a mean of 1 over it.

        A collective call.
        """
        if not self._normalizes:
            return
        total = count = torch.zeros((), dtype=torch.float64, device=model.device)
        for micro, (values, _) in model.infer(micros, EntropyMode.NONE):
            weights, _, _ = self._correct(micro.spread(values), micro.column(batch, "old_log_probs"), micro.mask)
            more, rows = weight_sums(weights, micro.mask, self._level)
            total, count = total + more, count + rows
        self._divisor = mean_weight(*sum_over_ranks(torch.stack([total, count]).tolist(), model.copies))

    def __call__(
        self, log_probs: torch.Tensor, rollout_log_probs: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """The weights (b, R) of a micro-batch, None for 1, and the mask (b, R) without what is rejected."""
        weights, kept, _ = self._correct(log_probs, rollout_log_probs, mask)
        return (weights / self._divisor if self._weighs else None), kept

    def _correct(
        self, log_probs: torch.Tensor, rollout_log_probs: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
        return rollout_correction(log_probs.detach(), rollout_log_probs, mask, **self._options)


def loss_name(policy_loss: str, correction: RolloutCorrectionConfig | None) -> str:
    """The policy loss of an update: the actor's, unless `loss_type` names another one."""
    own = correction is not None and correction.bypass_old_log_prob and correction.loss_type == "reinforce"
    return REINFORCE if own else policy_loss
