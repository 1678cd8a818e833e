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
from agentrl.plugins.own_algorithms import find_policy_loss
from agentrl.workers.bypass_correction import loss_name
from agentrl.workers.fsdp_model import FSDPModel
from agentrl.workers.loss_terms import LossTerms
from agentrl.workers.micro_batch_plan import MicroLimits
from agentrl.workers.micro_batches import RowLayout
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
        correction: see `LossTerms`.
        own_log_probs: see `LossTerms`; only where the update takes one step.

    Returns:
        The metrics of `UpdateReport.metrics`.
    """
    layout, batch = RowLayout(batch, "loss_mask", model.device), batch.to(model.device)
    name, mode = loss_name(config.policy_loss, correction), config.loss_agg_mode
    policy_loss = POLICY_LOSSES[name] if name in POLICY_LOSSES else find_policy_loss(name, config.policy_loss_kwargs)
    options: dict[str, Any] = _options(config, name)
    entropy_mode = EntropyMode.GRADIENT if config.entropy_coeff != 0 else EntropyMode.VALUE  # a gradient only if used
    alone = not config.use_kl_loss and config.entropy_coeff == 0  # nothing but the policy loss has a gradient
    terms_of, report = LossTerms(batch, correction, own_log_probs), UpdateReport(model.copies)
    for step, (micros, share) in enumerate(mini_batches(layout, plan, limits, scale)):
        terms_of.begin(model, micros)
        taken = taken_tokens(name, model, batch, micros, plan.row_numbers, [*seed, step], **options)
        for micro, (log_probs_K, entropies_K) in model.passes(micros, entropy_mode):
            log_probs, mask = micro.spread(log_probs_K), micro.mask
            (old, advantages, trained), weights, shares = terms_of(micro, log_probs, share)
            chosen: dict[str, Any] = {"loss_agg_mode": mode, "rollout_is_weights": weights}
            chosen |= {"tensor_metrics": True} if name in POLICY_LOSSES else {}  # numbers would wait for the GPU
            chosen |= {} if taken is None else {"taken": taken[micro.rows, : mask.shape[1]]}
            loss, metrics = policy_loss(log_probs, old, advantages, trained, **options, **chosen, **share)
            report.add({"pg_loss": loss, **metrics, **shares})
            if config.use_kl_loss:
                kl = kl_penalty(log_probs, micro.column(batch, "ref_log_prob"), config.kl_loss_type)
                report.add({"kl_loss": (kl_loss := aggregate_loss(kl, mask, mode, **share))})
                loss = loss + config.kl_loss_coef * kl_loss
            report.add({"entropy": (entropy := aggregate_loss(micro.spread(entropies_K), mask, mode, **share))})
            torch.autograd.backward(loss - config.entropy_coeff * entropy)
        idle = alone and terms_of.rejects_all()  # its gradient of 0 is no step: momentum and weight decay would move
        report.add_step(model.skip_step() if idle else model.step(lr))
    terms_of.finish()
    return report.metrics()


def _options(config: ActorConfig, name: str) -> dict[str, float]:
    """The clip ratios, and the options that are given and that this loss takes."""
    known = loss_options(name) if name in POLICY_LOSSES else {}
    return {**config.clip_ratios, **{k: value for k, value in config.policy_loss_options.given().items() if k in known}}
