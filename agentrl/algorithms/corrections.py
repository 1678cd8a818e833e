"""Measures and corrects the mismatch between the engine that sampled and the trainer that learns.

`log_ratio = old_log_prob - rollout_log_prob`, clamped to ±20; both are log-probs of the same sampled tokens, the first
by the trainer, the second by the engine. All values are detached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from agentrl.algorithms.kl import LOG_RATIO_LIMIT
from agentrl.algorithms.masked import masked_mean, zero_outside
from agentrl.algorithms.rejection import Rejection, check_rejection, passes, vetoed
from agentrl.errors import suggest

LEVELS = ("token", "sequence", "geometric")
_SMALLEST_MEAN = 1e-8


def rollout_correction(
    old_log_probs: Tensor,
    rollout_log_probs: Tensor,
    mask: Tensor,
    *,
    is_level: str | None = "token",
    is_threshold: float | tuple[float, float] = 2.0,
    is_batch_normalize: bool = False,
    rs: tuple[float, float] | None = None,
    rs_level: str = "sequence",
    rejections: Sequence[Rejection] = (),
    veto_threshold: float | None = None,
    measure: bool = True,
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Truncated importance weights and a mask without rejected tokens (truncation: arXiv 1802.01561).

    * `is_level="token"`: `min(exp(log_ratio), is_threshold)` at each token;
    * `is_level="sequence"`: `min(exp(sum of log_ratio), is_threshold)`, the likelihood ratio of the row, at all its
      tokens;
    * `is_level="geometric"`: `min(exp(mean of log_ratio), is_threshold)`, the same at all tokens of a row; None: 1.

    A rejected token or row leaves the mask; what is left has passed every rule (`rejection.py`). `rs` is the rule on
    the geometric mean of a row's ratios or, with `rs_level="token"`, on each token's ratio.

    Args:
        old_log_probs: `(B, T)`.
        rollout_log_probs: `(B, T)`.
        mask: `(B, T)`.
        is_level: `token`, `sequence`, `geometric` or None.
        is_threshold: C, the largest weight; or bounds outside which a weight is 0 (IcePop, arXiv 2510.18855).
        is_batch_normalize: divide the weights by their mean: over tokens at token level, else over rows.
        rs: rejection bounds of the ratio, or None.
        rs_level: `sequence` or `token`.
        rejections: further rules.
        veto_threshold: a row with a token whose ratio is below it leaves the mask; None: none does.
        measure: whether metrics are wanted, which wait for a GPU.

    Returns:
        Weights `(B, T)`, 0 outside the given mask; the mask `(B, T)` of what is left, in the type it came; metrics
        under `rollout_corr/`.

    Raises:
        ValueError: an unknown level or kind, a threshold that is not positive, or bounds that hold nothing.
    """
    low, high = is_threshold if isinstance(is_threshold, tuple) else (0.0, is_threshold)
    rules = [*([] if rs is None else [Rejection(_kind_of(rs_level), *rs)]), *rejections]
    _check(is_level, low, high, rs_level, rules, veto_threshold)
    if is_level is None:
        low, high = 0.0, math.inf  # bounds are of weights, and there are none
    log_ratio = _log_ratio(old_log_probs, rollout_log_probs, mask)
    raw = _ratios(log_ratio, mask, is_level)
    bounded = raw.clamp(max=high) if low == 0 else torch.where((raw >= low) & (raw <= high), raw, 0.0)
    weights = zero_outside(bounded, mask)
    kept, metrics = _kept(log_ratio, mask, rules, veto_threshold, measure=measure)
    if measure:
        metrics |= _correction_metrics(raw, weights, mask, kept, (low, high))
    if is_batch_normalize and is_level is not None:
        factor = mean_weight(*map(float, weight_sums(weights, mask, is_level)))
        weights, metrics["rollout_corr/is_batch_norm_factor"] = weights / factor, factor
    return weights, kept.to(mask.dtype), metrics


def weight_sums(weights: Tensor, mask: Tensor, is_level: str) -> tuple[Tensor, Tensor]:
    """Sum and number of the weights that a batch's mean is taken over: one per token, or one per row."""
    if is_level == "token":
        return zero_outside(weights, mask).double().sum(), mask.bool().sum()
    return masked_mean(weights.double(), mask, dim=-1).sum(), mask.bool().any(-1).sum()


def mean_weight(total: float, count: float) -> float:
    """Divisor of batch normalisation: the mean; 1 where there is nothing to divide."""
    mean = total / max(count, 1.0)
    return mean if mean > _SMALLEST_MEAN else 1.0


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


def _kind_of(rs_level: str) -> str:
    return "geometric" if rs_level == "sequence" else rs_level


def _ratios(log_ratio: Tensor, mask: Tensor, is_level: str | None) -> Tensor:
    """`(B, T)` importance ratios as they are, before anything is cut."""
    if is_level is None:
        return torch.ones_like(log_ratio)
    if is_level == "token":
        return log_ratio.exp()
    rows = log_ratio.sum(-1) if is_level == "sequence" else masked_mean(log_ratio, mask, dim=-1)
    return rows.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().unsqueeze(-1).expand_as(log_ratio)


def _kept(
    log_ratio: Tensor, mask: Tensor, rules: Sequence[Rejection], veto_threshold: float | None, *, measure: bool
) -> tuple[Tensor, dict[str, float]]:
    """`(B, T)` what every rule keeps of the mask, and the share that each would reject alone."""
    given, metrics = mask.bool(), {}
    kept = given
    for rule in rules:
        passed, statistic = passes(rule, log_ratio, mask)
        kept = kept & passed
        if not measure:
            continue
        name = f"rollout_corr/rs_{rule.kind}"
        metrics[f"{name}_masked_fraction"] = float(masked_mean((~passed).float().expand_as(log_ratio), given))
        metrics[f"{name}_mean"] = float(masked_mean(statistic.expand_as(log_ratio), given))
    if veto_threshold is not None:
        out = vetoed(log_ratio, mask, veto_threshold)
        kept = kept & ~out
        if measure:
            metrics["rollout_corr/veto_seq_fraction"] = float(masked_mean(out[:, 0].float(), given.any(-1)))
    return kept, metrics


def _check(
    is_level: str | None, low: float, high: float, rs_level: str, rules: Sequence[Rejection], veto: float | None
) -> None:
    for level, levels in ((is_level, LEVELS), (rs_level, ("token", "sequence"))):
        if level is not None and level not in levels:
            raise ValueError(f"unknown level '{level}' of rollout correction.{suggest(level, levels)}")
    if high <= 0 or not 0 <= low <= high:
        raise ValueError(f"the threshold of importance weights must be positive, got {(low, high) if low else high}")
    if veto is not None and veto <= 0:
        raise ValueError(f"the veto threshold of a token's ratio must be positive, got {veto}")
    for rule in rules:
        check_rejection(rule)


def _correction_metrics(
    raw: Tensor, weights: Tensor, mask: Tensor, kept: Tensor, bounds: tuple[float, float]
) -> dict[str, float]:
    given = mask.bool()
    had_rows, has_rows = given.any(-1), kept.any(-1)
    mean = masked_mean(weights, given)
    low = torch.where(given, weights, torch.inf).min() if bool(given.any()) else mean
    cut = (raw > bounds[1]) | (raw < bounds[0])
    values = {
        "rollout_corr/is_mean": mean,
        "rollout_corr/is_max": weights.max() if weights.numel() else mean,
        "rollout_corr/is_min": low,
        "rollout_corr/is_truncated_fraction": masked_mean(cut.float(), given),
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
