"""The policy's loss on one micro-batch: policy gradient, KL to the reference, entropy bonus."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from agentrl.algorithms import POLICY_LOSSES, aggregate_loss, kl_penalty
from agentrl.config.actor import ActorConfig
from agentrl.data_proto import DataProto
from agentrl.errors import ConfigError, suggest
from agentrl.workers.metric_sums import MetricSums
from agentrl.workers.micro_batches import MicroBatch
from agentrl.workers.token_stats import EntropyMode


@dataclass(frozen=True, slots=True)
class LossCounts:
    """Trained tokens and rows of a whole mini-batch, over all ranks: what every micro-batch's loss is divided by."""

    num_tokens: int
    num_sequences: int


class PolicyLoss:
    """Computes the loss and collects its metrics (`actor/*`).

    Args:
        config: `actor_rollout_ref.actor`.
        response_length: the scale of `seq-mean-token-sum-norm`: the longest response that the run allows.

    Raises:
        ConfigError: there is no policy loss of that name.
    """

    def __init__(self, config: ActorConfig, response_length: int) -> None:
        if config.policy_loss not in POLICY_LOSSES:
            raise ConfigError(
                f"actor_rollout_ref.actor.policy_loss: no loss '{config.policy_loss}'."
                + suggest(config.policy_loss, POLICY_LOSSES)
            )
        self.config = config
        self.scale = float(response_length)
        self._loss = POLICY_LOSSES[config.policy_loss]
        low, high = config.clip_ratio_low, config.clip_ratio_high
        self._clip = {
            "clip_ratio_low": config.clip_ratio if low is None else low,
            "clip_ratio_high": config.clip_ratio if high is None else high,
            "clip_ratio_c": config.clip_ratio_c,
        }

    @property
    def entropy_mode(self) -> EntropyMode:
        """The entropy carries a gradient only where it is part of the loss."""
        return EntropyMode.GRADIENT if self.config.entropy_coeff != 0 else EntropyMode.VALUE

    def __call__(
        self,
        batch: DataProto,
        counts: LossCounts,
        sums: MetricSums,
        micro: MicroBatch,
        outputs: tuple[torch.Tensor, torch.Tensor | None],
    ) -> torch.Tensor:
        """This micro-batch's share of the mini-batch's loss."""
        log_probs = micro.spread(outputs[0])
        mask = micro.mask.to(log_probs.dtype)
        weights = {"rollout_is_weights": micro.column(batch, "rollout_is_weights")}
        loss, metrics = self._loss(
            log_probs,
            micro.column(batch, "old_log_probs"),
            micro.column(batch, "advantages"),
            mask,
            loss_agg_mode=self.config.loss_agg_mode,
            **self._clip,
            **(weights if "rollout_is_weights" in batch.batch else {}),
        )
        return loss
