"""Which keys of `algorithm.rollout_correction`, and of what it replaces, cannot act in a run, and why."""

from __future__ import annotations

from agentrl.config.idle import Idle
from agentrl.config.rollout_correction import HAS_TWO_BOUNDS, RolloutCorrectionConfig
from agentrl.config.root import RunConfig

_SECTION = "algorithm.rollout_correction."
_ACTOR = "actor_rollout_ref.actor."


def _correction(run: RunConfig) -> RolloutCorrectionConfig:
    return run.algorithm.rollout_correction


def _has_own_loss(run: RunConfig) -> bool:
    return _correction(run).bypass_old_log_prob and _correction(run).loss_type == "reinforce"


OF_ROLLOUT_CORRECTION: tuple[Idle[RunConfig], ...] = (
    Idle(
        (f"{_SECTION}is_threshold", f"{_SECTION}is_batch_normalize"),
        lambda run: _correction(run).is_level is None,
        f"{_SECTION}is_level is null",
    ),
    Idle(
        (f"{_SECTION}rollout_rs_threshold*",),
        lambda run: not _correction(run).kinds,
        f"{_SECTION}rollout_rs is null",
    ),
    Idle(
        (f"{_SECTION}rollout_rs_threshold_lower",),
        lambda run: not set(_correction(run).kinds) & set(HAS_TWO_BOUNDS),
        f"{_SECTION}rollout_rs is {{{_SECTION}rollout_rs}}, and divergences have no lower bound",
    ),
    Idle(
        (f"{_SECTION}loss_type",),
        lambda run: not _correction(run).bypass_old_log_prob,
        f"{_SECTION}bypass_old_log_prob is false, so actor.policy_loss names the loss",
    ),
    Idle(
        (f"{_ACTOR}policy_loss", f"{_ACTOR}policy_loss_options.*", f"{_ACTOR}clip_ratio*"),
        _has_own_loss,
        f"{_SECTION}loss_type is reinforce, which is the loss and has no options",
    ),
    Idle(
        ("actor_rollout_ref.rollout.log_prob_*",),
        lambda run: _correction(run).bypass_old_log_prob,
        f"{_SECTION}bypass_old_log_prob is true, so old log-probs are not computed",
    ),
    Idle(
        ("actor_rollout_ref.rollout.log_prob_*",),
        lambda run: not run.needs_old_log_probs,
        "actor.ppo_mini_batch_size is data.train_batch_size and ppo_epochs is 1, so old log-probs are those of the one "
        "optimizer step of a batch, and are not computed before it",
    ),
)
