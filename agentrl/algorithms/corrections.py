"""Measures and corrects the mismatch between the engine that sampled and the trainer that learns.

`log_ratio = old_log_prob - rollout_log_prob`, clamped to ±20; both are log-probs of the same sampled tokens, the first
by the trainer, the second by the engine. All values are detached.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algorithms.kl import LOG_RATIO_LIMIT
from agentrl.algorithms.masked import masked_mean, zero_outside
from agentrl.errors import suggest

LEVELS = ("token", "sequence")


def rollout_correction(
    old_log_probs: Tensor,
    rollout_log_probs: Tensor,
    mask: Tensor,
    *,
    is_level: str | None = "token",
    is_threshold: float = 2.0,
    rs: tuple[float, float] | None = None,
    rs_level: str = "sequence",
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Truncated importance weights and a mask without rejected tokens (truncation: arXiv 1802.01561).

    * `is_level="token"`: `min(exp(log_ratio), is_threshold)` at each token;
    * `is_level="sequence"`: `min(exp(sum of log_ratio), is_threshold)`, the likelihood ratio of the row, at all its
      tokens;
    * `is_level=None`: weights of 1.

    Rejection needs bounds `rs = (low, high)`: with `rs_level="sequence"` a row leaves the mask if the geometric mean of
    its token ratios is outside, with `"token"` each token does so on its own.

    Args:
        old_log_probs: `(B, T)`.
        rollout_log_probs: `(B, T)`.
        mask: `(B, T)`.
        is_level: `token`, `sequence` or None.
        is_threshold: C, the largest weight.
        rs: rejection bounds of the ratio, or None.
        rs_level: `sequence` or `token`.

    Returns:
        Weights `(B, T)`, 0 outside the given mask; the mask `(B, T)` of what is left, in the type it came; metrics
        under `rollout_corr/`.

    Raises:
        ValueError: an unknown level, a threshold that is not positive, or bounds that hold nothing.
    """
    _check(is_level, is_threshold, rs, rs_level)
    log_ratio = _log_ratio(old_log_probs, rollout_log_probs, mask)
    raw = torch.ones_like(log_ratio)
    if is_level == "token":
        raw = log_ratio.exp()
    elif is_level == "sequence":
        total = log_ratio.sum(-1, keepdim=True).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        raw = total.exp().expand_as(log_ratio)
    weights = zero_outside(raw.clamp(max=is_threshold), mask)
    kept = mask.bool()
    if rs is not None:
        ratio = log_ratio if rs_level == "token" else masked_mean(log_ratio, mask, dim=-1).unsqueeze(-1)
        kept = kept & ((ratio.exp() >= rs[0]) & (ratio.exp() <= rs[1]))
    return weights, kept.to(mask.dtype), _correction_metrics(raw, weights, mask, kept, is_threshold)


def mismatch_metrics(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> dict[str, float]:
    """How far the engine's log-probs are from the trainer's, over the mask; all zeros (and correlation 1) if empty.

    * `training/rollout_probs_diff_{mean,max,std}`: of `|exp(old) - exp(rollout)|`;
    * `training/rollout_actor_probs_pearson_corr`: correlation of the two probabilities;
    * `rollout_corr/kl`: mean of `rollout - old`, an estimate of KL(engine || trainer); `rollout_corr/k3_kl`: its
      low-variance form;
    * `rollout_corr/{training,rollout}_ppl`, `rollout_corr/log_ppl_{diff,abs_diff}`: perplexities by row, then averaged;
    * `rollout_corr/chi2_token`: mean of `ratio^2 - 1`.
    """
    kept = mask.bool()
    old, rollout = zero_outside(old_log_probs, kept).double(), zero_outside(rollout_log_probs, kept).double()
    log_ratio = (old - rollout).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    rows = kept.any(-1)
    old_rows, rollout_rows = masked_mean(old, kept, dim=-1), masked_mean(rollout, kept, dim=-1)
    difference = zero_outside((old.exp() - rollout.exp()).abs(), kept)
    mean = masked_mean(difference, kept)
    values = {
        "training/rollout_probs_diff_mean": mean,
        "training/rollout_probs_diff_max": difference.max() if difference.numel() else mean,
        "training/rollout_probs_diff_std": masked_mean((difference - mean).square(), kept).sqrt(),
        "training/rollout_actor_probs_pearson_corr": _pearson(old.exp()[kept], rollout.exp()[kept]),
        "rollout_corr/kl": masked_mean(-log_ratio, kept),
        "rollout_corr/k3_kl": masked_mean(torch.expm1(log_ratio) - log_ratio, kept),
        "rollout_corr/training_ppl": masked_mean((-old_rows).exp(), rows),
        "rollout_corr/rollout_ppl": masked_mean((-rollout_rows).exp(), rows),
        "rollout_corr/log_ppl_diff": masked_mean(rollout_rows - old_rows, rows),
        "rollout_corr/log_ppl_abs_diff": masked_mean((rollout_rows - old_rows).abs(), rows),
        "rollout_corr/chi2_token": masked_mean(torch.expm1(2 * log_ratio), kept),
    }
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))


def finite_rows(mask: Tensor, *columns: Tensor) -> Tensor:
    """`(B, 1)` bool: rows in which every column `(B, T)` is finite wherever the mask is set."""
    finite = torch.ones_like(mask, dtype=torch.bool)
    for values in columns:
        finite &= values.isfinite() | ~mask.bool()
    return finite.all(-1, keepdim=True)


def _log_ratio(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> Tensor:
    difference = zero_outside(old_log_probs.detach(), mask) - zero_outside(rollout_log_probs.detach(), mask)
    return difference.float().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _check(is_level: str | None, is_threshold: float, rs: tuple[float, float] | None, rs_level: str) -> None:
    for level in (is_level, rs_level):
        if level is not None and level not in LEVELS:
            raise ValueError(f"unknown level '{level}' of rollout correction.{suggest(level, LEVELS)}")
    if is_threshold <= 0:
        raise ValueError(f"the threshold of importance weights must be positive, got {is_threshold}")
    if rs is not None and not 0 <= rs[0] <= rs[1]:
        raise ValueError(f"rejection bounds must be 0 <= low <= high, got {rs}")


def _correction_metrics(raw: Tensor, weights: Tensor, mask: Tensor, kept: Tensor, threshold: float) -> dict[str, float]:
    given = mask.bool()
    had_rows, has_rows = given.any(-1), kept.any(-1)
    mean = masked_mean(weights, given)
    low = torch.where(given, weights, torch.inf).min() if bool(given.any()) else mean
    values = {
        "rollout_corr/is_mean": mean,
        "rollout_corr/is_max": weights.max() if weights.numel() else mean,
        "rollout_corr/is_min": low,
        "rollout_corr/is_truncated_fraction": masked_mean((raw > threshold).float(), given),
        "rollout_corr/is_eff_sample_size": mean.square() / masked_mean(weights.square(), given).clamp(min=1e-12),
        "rollout_corr/rs_masked_fraction": masked_mean((~kept).float(), given),
        "rollout_corr/rs_seq_masked_fraction": masked_mean((~has_rows).float(), had_rows),
    }
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))


def _pearson(left: Tensor, right: Tensor) -> Tensor:
    """Correlation; where one side does not vary it is undefined: 1 if both are equal, else 0."""
    if left.numel() == 0 or torch.equal(left, right):
        return left.new_ones(())
    left, right = left - left.mean(), right - right.mean()
    spread = left.square().sum().sqrt() * right.square().sum().sqrt()
    return torch.where(spread > 0, (left * right).sum() / spread.clamp(min=1e-30), 0.0)
