"""The policy's training step, from top to bottom: mini-batches, micro-batches, the loss, backward, the optimizer.

The formulas are in `agentrl/algorithms/policy_losses.py`, with the parameter names of the configuration.
"""

from __future__ import annotations

from typing import Any

import torch

from agentrl.algorithms import POLICY_LOSSES, aggregate_loss, kl_penalty, loss_options
from agentrl.config.actor import ActorConfig
from agentrl.config.rollout_correction import RolloutCorrectionConfig
from agentrl.data_proto import DataProto
from agentrl.workers.bypass_correction import BypassCorrection, loss_name
from agentrl.workers.fsdp_model import FSDPModel
from agentrl.workers.micro_batch_plan import MicroLimits
from agentrl.workers.micro_batches import MicroBatch, RowLayout
from agentrl.workers.mini_batches import MiniBatchPlan, mini_batches
from agentrl.workers.token_choice import taken_tokens
from agentrl.workers.token_stats import EntropyMode
from agentrl.workers.update_report import UpdateReport


def update_policy(
    model: FSDPModel,
    batch: DataProto,
    plan: MiniBatchPlan,
    limits: MicroLimits,
    config: ActorConfig,
    *,
    scale: float,
    lr: float,
    seed: list[int],
    correction: RolloutCorrectionConfig | None = None,
    own_log_probs: torch.Tensor | None = None,
) -> dict[str, float]:
    """Take one optimizer step per mini-batch and epoch. A collective call.

    `loss = pg_loss + kl_loss_coef * kl_loss - entropy_coeff * entropy`

    Args:
        model: a sharded `PolicyNet`.
        batch: this rank's rows, with the columns that `ActorRolloutRefWorker.update_actor` lists.
        plan: the rows of each step.
        limits: limits of a micro-batch.
        config: `actor_rollout_ref.actor`.
        scale: divisor of `seq-mean-token-sum-norm`: the longest response that the run allows.
        lr: learning rate.
        seed: of this update's random numbers, which only `clip_cov` draws.
        correction: `algorithm.rollout_correction`, of which `bypass_correction` does its part.
        own_log_probs: (B, R) zeros on the CPU that receive the log-probs of this update, which are its old ones too:
            only where it takes one step. None: the batch has `old_log_probs`.

    Returns:
        The metrics of `UpdateReport.metrics`.
    """
    batch = batch.to(model.device)
    name, bypass = loss_name(config.policy_loss, correction), BypassCorrection.of(correction)
    policy_loss, mode, options = POLICY_LOSSES[name], config.loss_agg_mode, _options(config, name)
    entropy_mode = EntropyMode.GRADIENT if config.entropy_coeff != 0 else EntropyMode.VALUE  # a gradient only if used
    report = UpdateReport(model.copies)
    for step, (micros, share) in enumerate(mini_batches(RowLayout(batch, "loss_mask"), plan, limits, scale)):
        taken = taken_tokens(name, model, batch, micros, plan.row_numbers, [*seed, step], **options)
        if bypass is not None:
            bypass.begin(model, micros, batch)
        for micro, (log_probs_K, entropies_K) in model.passes(micros, entropy_mode):
            log_probs, mask = micro.spread(log_probs_K), micro.mask
            chosen: dict[str, Any] = {} if taken is None else {"taken": taken[micro.rows, : mask.shape[1]]}
            if own_log_probs is None:
                old = micro.column(batch, "old_log_probs")
            else:
                old = _kept(own_log_probs, micro, log_probs)
            weights, trained = micro.optional_column(batch, "rollout_is_weights"), mask
            if bypass is not None:
                weights, trained = bypass(log_probs, old, mask)
                rejected = aggregate_loss((mask & ~trained).float(), mask, "token-mean", **share)
                report.add({"rollout_rs_masked_fraction": rejected})
            loss, metrics = policy_loss(
                log_probs,
                old,
                micro.column(batch, "advantages"),
                trained,
                loss_agg_mode=mode,
                rollout_is_weights=weights,
                **options,
                **chosen,
                **share,
            )
            report.add({"pg_loss": loss, **metrics})
            if config.use_kl_loss:
                kl = kl_penalty(log_probs, micro.column(batch, "ref_log_prob"), config.kl_loss_type)
                kl_loss = aggregate_loss(kl, mask, mode, **share)
                loss = loss + config.kl_loss_coef * kl_loss
                report.add({"kl_loss": kl_loss})
            entropy = aggregate_loss(micro.spread(entropies_K), mask, mode, **share)
            report.add({"entropy": entropy})
            torch.autograd.backward(loss - config.entropy_coeff * entropy)
        report.add_step(model.step(lr))
    return report.metrics()


def _kept(own_log_probs: torch.Tensor, micro: MicroBatch, log_probs: torch.Tensor) -> torch.Tensor:
    """Keep a micro-batch's log-probs; they are its old ones."""
    old = log_probs.detach()
    own_log_probs[micro.rows.cpu(), : old.shape[1]] = old.cpu()
    return old


def _options(config: ActorConfig, name: str) -> dict[str, float]:
    """The clip ratios, and the options that are given and that this loss takes."""
    known = loss_options(name)
    return {**config.clip_ratios, **{k: value for k, value in config.policy_loss_options.given().items() if k in known}}
