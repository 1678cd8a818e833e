"""Policy losses. Each is one function of token terms; `POLICY_LOSSES` lists them.

`rho = exp(log_prob - old_log_prob)`, with the log-ratio clamped to ±20 so that value and gradient stay finite; A is
the advantage, m the mask. A core function gives the loss of each token `(B, T)`; the shared part around it cleans the
inputs, weights the tokens, aggregates them and counts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol

import torch
from torch import Tensor

from agentrl.algorithms.aggregation import aggregate_loss
from agentrl.algorithms.covariance import MiniBatchMeans, TokenScores, clip_cov_scores, highest, kl_cov_scores
from agentrl.algorithms.kl import LOG_RATIO_LIMIT
from agentrl.algorithms.masked import masked_mean, zero_outside

SEQUENCE_MEAN = "seq-mean-token-mean"
SMALLEST_WEIGHT = 1e-10
"""Importance weights below it count as this where their logarithm is taken."""


class PolicyLoss(Protocol):
    """Signature of every entry of `POLICY_LOSSES`."""

    def __call__(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        *,
        clip_ratio_low: float = 0.2,
        clip_ratio_high: float = 0.2,
        clip_ratio_c: float = 3.0,
        loss_agg_mode: str = "token-mean",
        rollout_is_weights: Tensor | None = None,
        scale: float | None = None,
        num_tokens: float | Tensor | None = None,
        num_sequences: float | Tensor | None = None,
        tensor_metrics: bool = False,
        **options: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute (loss, metrics).

        Args:
            log_probs: `(B, T)`, of the policy that learns; the only argument that gets a gradient.
            old_log_probs: `(B, T)`, of the policy at the start of the update.
            advantages: `(B, T)`.
            response_mask: `(B, T)`.
            clip_ratio_low: lower clip range.
            clip_ratio_high: upper clip range.
            clip_ratio_c: bound of the dual clip (vanilla).
            loss_agg_mode: see `aggregate_loss`; gspo and geo_mean are always `seq-mean-token-mean`.
            rollout_is_weights: `(B, T)` factors from `rollout_correction`.
            scale: see `LossShare`, also for the next two.
            num_tokens: see above.
            num_sequences: see above.
            tensor_metrics: give metrics as tensors: to read numbers from a GPU waits for it.
            **options: of one loss (`tau_pos`, `clip_cov_ratio`, …; see `loss_options`); an unknown one is a TypeError.

        Returns:
            A scalar, and `pg_clipfrac`, `pg_clipfrac_lower` and `ppo_kl` as means over tokens.
        """


@dataclass(frozen=True, slots=True)
class Terms:
    """What a loss is made of. All tensors are `(B, T)` and 0 outside the mask."""

    log_probs: Tensor
    log_ratio: Tensor
    """`log_prob - old_log_prob`, clamped to ±20."""
    advantages: Tensor
    mask: Tensor
    clip_ratio_low: float
    clip_ratio_high: float
    clip_ratio_c: float

    @property
    def ratio(self) -> Tensor:
        """`exp(log_ratio)`."""
        return self.log_ratio.exp()

    def clip(self, ratio: Tensor) -> Tensor:
        """`clip(ratio, 1 - clip_ratio_low, 1 + clip_ratio_high)`."""
        return ratio.clamp(1 - self.clip_ratio_low, 1 + self.clip_ratio_high)

    def row_mean(self, values: Tensor) -> Tensor:
        """Mean over each row's tokens, as `(B, 1)`."""
        return masked_mean(values, self.mask, dim=-1).unsqueeze(-1)


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Losses of the tokens, `(B, T)`, and which of them were clipped."""

    loss: Tensor
    clipped: Tensor | None = None
    clipped_lower: Tensor | None = None


def _policy_loss(
    mode: str | None = None, *, geometric: bool = False
) -> Callable[[Callable[..., TokenLoss]], PolicyLoss]:
    """Give a core function the public signature.

    Args:
        mode: fixes the aggregation of sequence-level losses.
        geometric: a sequence has one importance weight, the geometric mean of its tokens' weights.
    """

    def decorate(core: Callable[..., TokenLoss]) -> PolicyLoss:
        @wraps(core)
        def loss(
            log_probs: Tensor,
            old_log_probs: Tensor,
            advantages: Tensor,
            response_mask: Tensor,
            *,
            clip_ratio_low: float = 0.2,
            clip_ratio_high: float = 0.2,
            clip_ratio_c: float = 3.0,
            loss_agg_mode: str = "token-mean",
            rollout_is_weights: Tensor | None = None,
            scale: float | None = None,
            num_tokens: float | Tensor | None = None,
            num_sequences: float | Tensor | None = None,
            tensor_metrics: bool = False,
            **options: Any,
        ) -> tuple[Tensor, dict[str, Any]]:
            mask = response_mask.bool()
            clean = zero_outside(wide(log_probs), mask)
            log_ratio = clean - zero_outside(wide(old_log_probs), mask)
            terms = Terms(
                clean,
                log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT),
                zero_outside(wide(advantages), mask),
                mask,
                clip_ratio_low,
                clip_ratio_high,
                clip_ratio_c,
            )
            tokens = core(terms, **options)
            weights = rollout_is_weights
            if weights is not None and geometric:
                weights = terms.row_mean(wide(weights).clamp(min=SMALLEST_WEIGHT).log()).exp()
            weighted = tokens.loss if weights is None else tokens.loss * weights
            total = aggregate_loss(
                weighted, mask, mode or loss_agg_mode, scale=scale, num_tokens=num_tokens, num_sequences=num_sequences
            )
            metrics = _metrics(terms, tokens, num_tokens)
            if tensor_metrics:
                return total, metrics
            return total, dict(zip(metrics, torch.stack(list(metrics.values())).tolist(), strict=True))

        return loss

    return decorate


@_policy_loss()
def vanilla(terms: Terms) -> TokenLoss:
    """PPO with dual clip: `max(-A rho, -A clip(rho))`, for A < 0 at most `-A c` (arXiv 1707.06347, 1912.09729)."""
    plain = -terms.advantages * terms.ratio
    clipped = -terms.advantages * terms.clip(terms.ratio)
    worst = torch.maximum(plain, clipped)
    bound = -terms.advantages * terms.clip_ratio_c
    negative = terms.advantages < 0
    loss = torch.where(negative, torch.minimum(worst, bound), worst)
    return TokenLoss(loss, clipped > plain, negative & (worst > bound))


@_policy_loss(SEQUENCE_MEAN)
def gspo(terms: Terms) -> TokenLoss:
    """One ratio per sequence, `exp(mean log-ratio)`, clipped as in PPO (arXiv 2507.18071, GSPO-token).

    The value of the ratio is the sequence's; its gradient flows through each token's own log-prob.
    """
    sequence = terms.row_mean(terms.log_ratio).detach()
    ratio = (terms.log_probs - terms.log_probs.detach() + sequence).exp()
    plain = -terms.advantages * ratio
    clipped = -terms.advantages * terms.clip(ratio)
    return TokenLoss(torch.maximum(plain, clipped), clipped > plain)


@_policy_loss()
def cispo(terms: Terms) -> TokenLoss:
    """`-sg(clip(rho)) A log pi`: clips the weight, keeps every token's gradient (arXiv 2506.13585)."""
    ratio = terms.ratio.detach()
    weight = terms.clip(ratio)
    return TokenLoss(-weight * terms.advantages * terms.log_probs, weight != ratio)


@_policy_loss()
def gpg(terms: Terms) -> TokenLoss:
    """`-A log pi`: plain policy gradient (arXiv 2504.02546)."""
    return TokenLoss(-terms.advantages * terms.log_probs)


@_policy_loss()
def sapo(terms: Terms, *, tau_pos: float = 1.0, tau_neg: float = 1.05) -> TokenLoss:
    """`-A (4 / tau) sigmoid(tau (rho - 1))`: a soft gate instead of a clip (arXiv 2511.20347)."""
    tau = torch.where(terms.advantages > 0, tau_pos, tau_neg)
    return TokenLoss(-terms.advantages * (4.0 / tau) * torch.sigmoid(tau * (terms.ratio - 1.0)))


@_policy_loss(SEQUENCE_MEAN, geometric=True)
def geo_mean(terms: Terms) -> TokenLoss:
    """`-A exp(mean clipped log-ratio)`: geometric-mean policy optimization (arXiv 2507.20673).

    The log-ratio is clipped to [-clip_ratio_low, clip_ratio_high], pessimistically as in PPO: where clipping would
    favour the update, the plain log-ratio stays. A is the mean advantage of the sequence. Importance weights count as
    ratios do, with their geometric mean: weights 0.5 and 2 of a sequence are a weight of 1.
    """
    sign = terms.advantages.sign()
    bounded = terms.log_ratio.clamp(-terms.clip_ratio_low, terms.clip_ratio_high)
    pessimistic = sign * torch.minimum(sign * terms.log_ratio, sign * bounded)
    per_row = -terms.row_mean(terms.advantages) * terms.row_mean(pessimistic).exp()
    outside = terms.log_ratio != bounded
    return TokenLoss(per_row.expand(terms.mask.shape), outside & (sign > 0), outside & (sign < 0))


@_policy_loss()
def clip_cov(
    terms: Terms,
    *,
    clip_cov_ratio: float = 2e-4,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
    taken: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> TokenLoss:
    """PPO in which a random few of the tokens with high covariance get no gradient (arXiv 2505.22617).

    `covariance.py` says which: out of the unclipped tokens between the bounds, `clip_cov_ratio` of all tokens, but at
    least one. `taken` `(B, T)` are those of the mini-batch that this call is a part of; None: they are chosen here.
    """
    plain = -terms.advantages * terms.ratio
    clipped = -terms.advantages * terms.clip(terms.ratio)
    if taken is None:
        draws = torch.rand(terms.mask.shape, generator=generator).to(plain.device)
        options = {"clip_cov_ratio": clip_cov_ratio, "clip_cov_lb": clip_cov_lb, "clip_cov_ub": clip_cov_ub}
        taken = _taken_here(clip_cov_scores, terms, draws, options)
    left_out = taken & terms.mask
    return TokenLoss(zero_outside(torch.maximum(plain, clipped), ~left_out), left_out)


@_policy_loss()
def kl_cov(
    terms: Terms, *, kl_cov_ratio: float = 2e-4, ppo_kl_coef: float = 1.0, taken: Tensor | None = None
) -> TokenLoss:
    """`-A rho`, and `+ coef |log-ratio|` for the tokens with the highest covariance (arXiv 2505.22617).

    `taken` `(B, T)` are those of the mini-batch that this call is a part of; None: they are chosen here.
    """
    loss = -terms.advantages * terms.ratio
    if taken is None:
        taken = _taken_here(kl_cov_scores, terms, terms.advantages, {"kl_cov_ratio": kl_cov_ratio})
    return TokenLoss(loss + torch.where(taken & terms.mask, ppo_kl_coef * terms.log_ratio.abs(), 0.0))


POLICY_LOSSES: dict[str, PolicyLoss] = {
    "vanilla": vanilla,
    "gspo": gspo,
    "cispo": cispo,
    "gpg": gpg,
    "sapo": sapo,
    "geo_mean": geo_mean,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
}


def loss_options(name: str) -> dict[str, float]:
    """The options that a loss takes beside those that all take, with their defaults: `{"tau_pos": 1.0, …}`."""
    common = inspect.signature(PolicyLoss.__call__).parameters
    own = inspect.signature(POLICY_LOSSES[name]).parameters.values()
    keywords = (parameter for parameter in own if parameter.kind is parameter.KEYWORD_ONLY)
    return {
        parameter.name: parameter.default
        for parameter in keywords
        if parameter.name not in common and isinstance(parameter.default, float)
    }


def wide(values: Tensor) -> Tensor:
    """At least float32: an exponential of a bfloat16 difference is useless."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def _taken_here(scores: Callable[..., TokenScores], terms: Terms, draws: Tensor, options: dict[str, float]) -> Tensor:
    """The tokens that a covariance loss takes if this call sees the whole mini-batch."""
    log_probs = terms.log_probs.detach()
    means = MiniBatchMeans(
        masked_mean(terms.advantages, terms.mask), masked_mean(log_probs, terms.mask), int(terms.mask.sum())
    )
    old = log_probs - terms.log_ratio.detach()
    clips = {"clip_ratio_low": terms.clip_ratio_low, "clip_ratio_high": terms.clip_ratio_high}
    return highest(scores(log_probs, old, terms.advantages, terms.mask, means, draws, **clips, **options))


def _metrics(terms: Terms, tokens: TokenLoss, num_tokens: float | Tensor | None) -> dict[str, Tensor]:
    nothing = torch.zeros_like(terms.log_ratio)
    columns = {
        "pg_clipfrac": nothing if tokens.clipped is None else tokens.clipped.to(nothing.dtype),
        "pg_clipfrac_lower": nothing if tokens.clipped_lower is None else tokens.clipped_lower.to(nothing.dtype),
        "ppo_kl": -terms.log_ratio.detach(),
    }
    return {
        name: aggregate_loss(column, terms.mask, "token-mean", num_tokens=num_tokens)
        for name, column in columns.items()
    }
