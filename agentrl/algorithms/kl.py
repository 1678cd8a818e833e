"""KL estimators, the controllers of their weight, and the KL in the reward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from agentrl.algorithms.masked import masked_mean, zero_outside
from agentrl.errors import suggest

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to plus or minus this before `exp`: e**20 is 5e8, and no larger ratio means anything."""


def kl_penalty(log_probs: Tensor, ref_log_probs: Tensor, kind: str) -> Tensor:
    """Token estimates of KL(policy || reference), same shape as the inputs.

    From J. Schulman, "Approximating KL divergence" (2020). With `d = log_prob - ref_log_prob`:

    * `k1` (alias `kl`): `d`; unbiased, of either sign;
    * `abs`: `|d|`;
    * `k2` (alias `mse`): `d^2 / 2`; its gradient is an unbiased gradient of the KL;
    * `k3` (alias `low_var_kl`): `exp(-d) - 1 + d`, d clamped to ±20; never negative.

    A `+` suffix gives the value of the kind and the gradient of k2.

    Raises:
        ValueError: an unknown kind.
    """
    estimate = _KINDS.get(kind.removesuffix("+"))
    if estimate is None:
        raise ValueError(f"unknown KL estimator '{kind}'.{suggest(kind, _KINDS)}")
    difference = log_probs - ref_log_probs
    value = estimate(difference)
    if not kind.endswith("+"):
        return value
    surrogate = _k2(difference)
    return surrogate + (value - surrogate).detach()


def _k1(difference: Tensor) -> Tensor:
    return difference


def _k2(difference: Tensor) -> Tensor:
    return 0.5 * difference.square()


def _k3(difference: Tensor) -> Tensor:
    bounded = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.expm1(-bounded) + bounded


_KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": _k1,
    "kl": _k1,
    "abs": torch.abs,
    "k2": _k2,
    "mse": _k2,
    "k3": _k3,
    "low_var_kl": _k3,
}


def kl_in_reward(
    token_level_scores: Tensor,
    old_log_probs: Tensor,
    ref_log_probs: Tensor,
    response_mask: Tensor,
    *,
    kl_coef: float,
    kind: str = "kl",
) -> tuple[Tensor, float]:
    """Token rewards `score - kl_coef * KL`, `(B, T)`, and the KL averaged over each row, then over the rows."""
    penalty = zero_outside(kl_penalty(old_log_probs, ref_log_probs, kind), response_mask)
    per_row = masked_mean(penalty, response_mask, dim=-1)
    current = masked_mean(per_row, response_mask.bool().any(-1))
    return zero_outside(token_level_scores, response_mask) - kl_coef * penalty, float(current.detach())


class FixedKLController:
    """A constant weight."""

    def __init__(self, kl_coef: float) -> None:
        self.value = kl_coef

    def update(self, current_kl: float, n_steps: int) -> None:
        """Does nothing: the weight is fixed."""

    def state_dict(self) -> dict[str, float]:
        """The state for a checkpoint."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Resume from a checkpoint: a fixed weight stays as configured."""


class AdaptiveKLController:
    """A weight adapted towards a target KL (arXiv 1909.08593, sec. 2.2).

    Args:
        init_kl_coef: weight at the start.
        target_kl: KL to reach.
        horizon: time constant, in the unit of `n_steps`.
    """

    def __init__(self, init_kl_coef: float, target_kl: float, horizon: float) -> None:
        if target_kl <= 0 or horizon <= 0:
            raise ValueError(f"target_kl and horizon must be positive, got {target_kl} and {horizon}")
        self.value = init_kl_coef
        self.target_kl = target_kl
        self.horizon = horizon

    def update(self, current_kl: float, n_steps: int) -> None:
        """`value *= 1 + clip(current / target - 1, ±0.2) * n_steps / horizon`; `n_steps` counts trajectories."""
        error = min(max(current_kl / self.target_kl - 1.0, -0.2), 0.2)
        self.value *= 1.0 + error * n_steps / self.horizon

    def state_dict(self) -> dict[str, float]:
        """The state for a checkpoint."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Resume from a checkpoint."""
        self.value = state["value"]
