"""Which tokens of a mini-batch `clip_cov` and `kl_cov` treat apart (arXiv 2505.22617).

Covariance of a token: `(A - mean A) (log pi - mean log pi)`, with the means of the whole mini-batch. A score says in
which order tokens are taken: those with the highest covariance (`kl_cov`), or a random few of those between two bounds
(`clip_cov`). Four tokens on policy, A 1.5 -1.5 1.5 -1.5 and log pi 0 -1 -2 -3, so means 0 and -1.5::

    covariance            2.25  -0.75  -0.75   2.25
    kl_cov, ratio 0.5     taken                taken       the highest 2 of 4
    clip_cov, 1 < c < 5   one of the two, at random         at least one, whatever the ratio
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.algorithms.kl import LOG_RATIO_LIMIT
from agentrl.algorithms.masked import zero_outside


@dataclass(frozen=True, slots=True)
class TokenScores:
    """The order in which tokens are taken.

    Attributes:
        values: `(B, T)`; the highest are taken first, those at minus infinity never.
        wanted: how many are taken of the whole mini-batch; all, if fewer may be.
    """

    values: Tensor
    wanted: int


@dataclass(frozen=True, slots=True)
class MiniBatchMeans:
    """Over all tokens of a mini-batch, on all ranks."""

    advantage: float | Tensor
    log_prob: float | Tensor
    num_tokens: int


def kl_cov_scores(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    means: MiniBatchMeans,
    draws: Tensor,
    *,
    kl_cov_ratio: float = 2e-4,
    **_options: Any,
) -> TokenScores:
    """The tokens with the highest covariance; arguments as for `clip_cov_scores`."""
    covariance = _covariance(log_probs, advantages, mask, means)
    wanted = max(int(means.num_tokens * kl_cov_ratio), 1) if kl_cov_ratio > 0 else 0
    return TokenScores(torch.where(mask.bool(), covariance, -torch.inf), wanted)


def clip_cov_scores(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    means: MiniBatchMeans,
    draws: Tensor,
    *,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    clip_cov_ratio: float = 2e-4,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
    **_options: Any,
) -> TokenScores:
    """A random few of the tokens that are not clipped and whose covariance lies between the bounds.

    Args:
        log_probs: `(B, T)`, of the policy that learns.
        old_log_probs: `(B, T)`, of the policy at the start of the update.
        advantages: `(B, T)`.
        mask: `(B, T)`.
        means: of the mini-batch that the tokens belong to.
        draws: `(B, T)` a random number for each token.
        clip_ratio_low: lower clip range.
        clip_ratio_high: upper clip range.
        clip_cov_ratio: share of all tokens that are taken; at least one is.
        clip_cov_lb: lower bound of the covariance.
        clip_cov_ub: upper bound of the covariance.
    """
    covariance = _covariance(log_probs, advantages, mask, means)
    difference = zero_outside(log_probs.detach(), mask) - zero_outside(old_log_probs, mask)
    ratio = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    known = zero_outside(advantages, mask)
    clipped = -known * ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high) > -known * ratio
    eligible = mask.bool() & ~clipped & (covariance > clip_cov_lb) & (covariance < clip_cov_ub)
    wanted = max(int(clip_cov_ratio * means.num_tokens), 1)
    return TokenScores(torch.where(eligible, draws.to(covariance.dtype), -torch.inf), wanted)


SCORES_OF_LOSS: dict[str, Callable[..., TokenScores]] = {"clip_cov": clip_cov_scores, "kl_cov": kl_cov_scores}
"""The losses that compare all tokens of a mini-batch; a part of it cannot know which tokens they take."""


def highest(scores: TokenScores) -> Tensor:
    """The tokens taken, `(B, T)` bool, where `scores` hold the whole mini-batch."""
    flat = scores.values.flatten()
    top = flat.topk(min(scores.wanted, int((flat > -torch.inf).sum()))).indices
    return torch.zeros_like(flat, dtype=torch.bool).index_fill(0, top, True).view_as(scores.values)


def _covariance(log_probs: Tensor, advantages: Tensor, mask: Tensor, means: MiniBatchMeans) -> Tensor:
    return zero_outside((advantages - means.advantage) * (log_probs.detach() - means.log_prob), mask)
