"""Advantages, policy losses, KL, value loss and corrections: pure functions on tensors, no configuration, no state.

Shapes: `(B, T)` is batch by response position; groups are a list of B hashables. Masks may be bool, int or float; where
the mask is 0, values never matter, not even NaN.

`ADVANTAGE_ESTIMATORS` and `POLICY_LOSSES` are the names that `algorithm.adv_estimator` and
`actor_rollout_ref.actor.policy_loss` accept; add an entry to add an algorithm.
"""

from agentrl.algorithms.advantages import ADVANTAGE_ESTIMATORS
from agentrl.algorithms.aggregation import AGGREGATION_MODES, LossShare, aggregate_loss
from agentrl.algorithms.corrections import finite_rows, mismatch_metrics, rollout_correction
from agentrl.algorithms.covariance import SCORES_OF_LOSS, MiniBatchMeans, TokenScores
from agentrl.algorithms.groups import group_metrics, zero_variance_rows
from agentrl.algorithms.kl import AdaptiveKLController, FixedKLController, kl_in_reward, kl_penalty
from agentrl.algorithms.masked import masked_mean, masked_whiten
from agentrl.algorithms.policy_losses import POLICY_LOSSES, loss_options
from agentrl.algorithms.rejection import REJECTION_KINDS, Rejection
from agentrl.algorithms.value_loss import value_loss

__all__ = [
    "ADVANTAGE_ESTIMATORS",
    "AGGREGATION_MODES",
    "POLICY_LOSSES",
    "REJECTION_KINDS",
    "SCORES_OF_LOSS",
    "AdaptiveKLController",
    "FixedKLController",
    "LossShare",
    "MiniBatchMeans",
    "Rejection",
    "TokenScores",
    "aggregate_loss",
    "finite_rows",
    "group_metrics",
    "kl_in_reward",
    "kl_penalty",
    "loss_options",
    "masked_mean",
    "masked_whiten",
    "mismatch_metrics",
    "rollout_correction",
    "value_loss",
    "zero_variance_rows",
]
