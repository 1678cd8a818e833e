"""The policy's loss on one micro-batch: policy gradient, KL to the reference, entropy bonus."""

from __future__ import annotations

import torch

from agentrl.algorithms import POLICY_LOSSES, aggregate_loss, kl_penalty
from agentrl.config.actor import ActorConfig
from agentrl.errors import ConfigError, suggest
from agentrl.workers.micro_batches import MicroBatch
from agentrl.workers.token_stats import EntropyMode
from agentrl.workers.updates import LossContext


class PolicyLoss:
    """Computes the loss and collects its metrics (`actor/*`).

    Args:
        config: `actor_rollout_ref.actor`.
        response_length: the scale of `seq-mean-token-sum-norm`: the longest response that the run allows.

    Raises:
        ConfigError: the policy loss is unknown.
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
        """The entropy has a gradient only if it is part of the loss."""
        return EntropyMode.GRADIENT if self.config.entropy_coeff != 0 else EntropyMode.VALUE

    @property
    def columns(self) -> list[str]:
        """The columns of a batch that the loss reads, besides the ids and masks."""
        return ["old_log_probs", "advantages", *(["ref_log_prob"] if self.config.use_kl_loss else [])]

    def __call__(
        self, context: LossContext, micro: MicroBatch, outputs: tuple[torch.Tensor, torch.Tensor | None]
    ) -> torch.Tensor:
        """This micro-batch's share of the mini-batch's loss.

        Args:
            context: the rank's rows, the counts of the whole mini-batch, the metrics.
            micro: which rows and tokens these are.
            outputs: log-probs and entropies (K,), as `PolicyNet` returns them.
        """
        batch, config = context.batch, self.config
        log_probs = micro.spread(outputs[0])
        weights = micro.column(batch, "rollout_is_weights") if "rollout_is_weights" in batch.batch else None
        loss, metrics = self._loss(
            log_probs,
            micro.column(batch, "old_log_probs"),
            micro.column(batch, "advantages"),
            micro.mask,
            loss_agg_mode=config.loss_agg_mode,
            rollout_is_weights=weights,
            scale=self.scale,
            num_tokens=context.num_tokens,
            num_sequences=context.num_sequences,
            **self._clip,
        )
        context.metrics.add("pg_loss", loss)
        for name, share in metrics.items():
            context.metrics.add(name, share)
        if config.use_kl_loss:
            penalty = kl_penalty(log_probs, micro.column(batch, "ref_log_prob"), config.kl_loss_type)
            kl = self._aggregate(penalty, micro, context)
            context.metrics.add("kl_loss", kl)
            loss = loss + config.kl_loss_coef * kl
        if outputs[1] is not None:
            entropy = self._aggregate(micro.spread(outputs[1]), micro, context)
            context.metrics.add("entropy", entropy)
            loss = loss - config.entropy_coeff * entropy
        return loss

    def _aggregate(self, values: torch.Tensor, micro: MicroBatch, context: LossContext) -> torch.Tensor:
        return aggregate_loss(
            values,
            micro.mask,
            self.config.loss_agg_mode,
            scale=self.scale,
            num_tokens=context.num_tokens,
            num_sequences=context.num_sequences,
        )
