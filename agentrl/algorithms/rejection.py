"""Which tokens and rows are too far from the policy that sampled them to be trained on.

With `log r = old_log_prob - rollout_log_prob` at each sampled token, a rule compares one statistic with its bounds:

* `token`, `sequence`, `geometric`: the ratio of a token, of a row (the product of its tokens' ratios), and the
  geometric mean of a row's ratios; kept where `low <= ratio <= high`;
* `token_k1`, `seq_sum_k1`, `seq_mean_k1`: `k1 = -log r` of a token, summed over a row, and its mean over a row; kept
  where `log(low) <= k1 <= log(high)`: the bounds are of `1 / r`, as in verl;
* `token_k2`, `seq_sum_k2`, `seq_mean_k2`, `seq_max_k2`: the same and the largest of a row, of `k2 = (log r)^2 / 2`;
  kept where `k2 <= high`;
* `token_k3`, …: of `k3 = r - 1 - log r`; kept where `k3 <= high`.

For a row with log r = [0.2, -0.4]: sequence e^-0.2 = 0.82, geometric e^-0.1 = 0.90, seq_sum_k1 0.2, seq_mean_k1 0.1,
seq_max_k2 0.08. The kinds and the case for them: "When Speed Kills Stability" (Liu et al., 2025).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from agentrl.algorithms.kl import LOG_RATIO_LIMIT
from agentrl.algorithms.masked import masked_mean, zero_outside
from agentrl.errors import suggest

RATIO_KINDS = ("token", "sequence", "geometric")
INVERSE_KINDS = ("token_k1", "seq_sum_k1", "seq_mean_k1")
DIVERGENCE_KINDS = (
    *("token_k2", "seq_sum_k2", "seq_mean_k2", "seq_max_k2"),
    *("token_k3", "seq_sum_k3", "seq_mean_k3", "seq_max_k3"),
)
REJECTION_KINDS = (*RATIO_KINDS, *INVERSE_KINDS, *DIVERGENCE_KINDS)
_DIVERGENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": torch.neg,
    "k2": lambda log_ratio: log_ratio.square() / 2,
    "k3": lambda log_ratio: torch.expm1(log_ratio) - log_ratio,
}


class Rejection(NamedTuple):
    """One rule; the bounds of kinds with a single bound are 0 and `high`."""

    kind: str
    low: float
    high: float


def check_rejection(rule: Rejection) -> None:
    """Refuse a rule that means nothing.

    Raises:
        ValueError: an unknown kind, or bounds that hold nothing.
    """
    if rule.kind not in REJECTION_KINDS:
        raise ValueError(f"unknown kind of rejection '{rule.kind}'.{suggest(rule.kind, REJECTION_KINDS)}")
    if not 0 <= rule.low <= rule.high or (rule.kind in INVERSE_KINDS and rule.low == 0):
        raise ValueError(f"rejection bounds must be 0 <= low <= high, got {rule.kind} {(rule.low, rule.high)}")


def passes(rule: Rejection, log_ratio: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Apply one rule.

    Args:
        rule: a checked rule.
        log_ratio: `(B, T)`, clamped, 0 outside the mask.
        mask: `(B, T)`.

    Returns:
        What the rule keeps, and its statistic: both `(B, T)` or, for rules on rows, `(B, 1)`.
    """
    statistic = _statistic(rule.kind, log_ratio, mask)
    if rule.kind in DIVERGENCE_KINDS:
        return statistic <= rule.high, statistic
    if rule.kind in INVERSE_KINDS:
        return (statistic >= math.log(rule.low)) & (statistic <= math.log(rule.high)), statistic
    ratio = statistic.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return (ratio >= rule.low) & (ratio <= rule.high), ratio


def vetoed(log_ratio: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """`(B, 1)` bool: rows with a token whose ratio is below the threshold, as of text that the trainer finds absurd."""
    return ((log_ratio < math.log(threshold)) & mask.bool()).any(-1, keepdim=True)


def _statistic(kind: str, log_ratio: Tensor, mask: Tensor) -> Tensor:
    if kind == "token":
        return log_ratio
    if kind in ("sequence", "geometric"):
        return _over_row("sum" if kind == "sequence" else "mean", log_ratio, mask)
    level, _, divergence = kind.rpartition("_")
    values = zero_outside(_DIVERGENCES[divergence](log_ratio), mask)
    return values if level == "token" else _over_row(level.removeprefix("seq_"), values, mask)


def _over_row(how: str, values: Tensor, mask: Tensor) -> Tensor:
    """`(B, 1)`; the largest of values that are never negative, so that the zeros outside the mask do not matter."""
    if how == "sum":
        return values.sum(-1, keepdim=True)
    return values.amax(-1, keepdim=True) if how == "max" else masked_mean(values, mask, dim=-1).unsqueeze(-1)
