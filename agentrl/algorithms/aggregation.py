"""From token losses to one number, independent of how a mini-batch is split into micro-batches and over ranks."""

from __future__ import annotations

from typing import TypedDict

from torch import Tensor

from agentrl.algorithms.masked import zero_outside
from agentrl.errors import suggest

AGGREGATION_MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


class LossShare(TypedDict):
    """What a loss must know about the mini-batch of which one call sees a part.

    A mini-batch is cut into micro-batches and spread over ranks. Each call divides its sum by the counts of the *whole*
    mini-batch, over all ranks; so the shares of all calls add up to the loss, and their gradients to its gradient,
    however it was cut. Two sequences of 1 and 3 tokens with losses 1 and 0, as `token-mean`::

        in one call                        (1 + 0 + 0 + 0) / 4   = 0.25
        one call each, `num_tokens=4`      1 / 4  +  0 / 4       = 0.25
        one call each, without counts      1 / 1,    0 / 3         two means; neither their sum nor their mean is 0.25

    Metrics that a loss returns are shares too. (Where gradients are averaged over ranks, as FSDP does unless told
    otherwise, a share would have to be multiplied by the number of ranks; `FSDPModel` sums them.)
    """

    num_tokens: float | Tensor | None
    """Masked tokens; None: of this call."""
    num_sequences: float | Tensor | None
    """Rows with a masked token; None: of this call."""
    scale: float | None
    """Divisor of `seq-mean-token-sum-norm`, best the run's response length; None: T, which varies with padding."""


def aggregate_loss(
    loss_mat: Tensor,
    mask: Tensor,
    mode: str,
    *,
    scale: float | None = None,
    num_tokens: float | Tensor | None = None,
    num_sequences: float | Tensor | None = None,
) -> Tensor:
    """One number from a matrix of token losses.

    * `token-mean`: sum over all tokens / number of tokens (DAPO, arXiv 2503.14476);
    * `seq-mean-token-sum`: sum within each sequence, mean over sequences;
    * `seq-mean-token-mean`: mean within each sequence, mean over sequences (GRPO, arXiv 2402.03300);
    * `seq-mean-token-sum-norm`: as `seq-mean-token-sum`, divided by `scale` (Dr.GRPO, arXiv 2503.20783).

    Args:
        loss_mat: `(B, T)` token losses.
        mask: `(B, T)`; a row without a 1 does not count as a sequence.
        mode: one of `AGGREGATION_MODES`.
        scale: see `LossShare`, also for the next two.
        num_tokens: see above.
        num_sequences: see above.

    Returns:
        A scalar; 0, with zero gradients, if everything is masked.

    Raises:
        ValueError: an unknown mode, or a scale that is not positive.
    """
    if mode not in AGGREGATION_MODES:
        raise ValueError(f"unknown loss aggregation '{mode}'.{suggest(mode, AGGREGATION_MODES)}")
    if scale is not None and scale <= 0:
        raise ValueError(f"the scale of a loss must be positive, got {scale}")
    lengths = mask.bool().sum(-1)
    sums = zero_outside(loss_mat, mask).sum(-1)
    if mode == "token-mean":
        return sums.sum() / _count(num_tokens, lengths.sum())
    if mode == "seq-mean-token-mean":
        sums = sums / lengths.clamp(min=1)
    elif mode == "seq-mean-token-sum-norm":
        sums = sums / (mask.shape[-1] if scale is None else scale)
    return sums.sum() / _count(num_sequences, (lengths > 0).sum())


def _count(given: float | Tensor | None, own: Tensor) -> float | Tensor:
    """The global count where given, else this call's; never 0, since an empty sum divided by it must be 0."""
    if given is None:
        return own.clamp(min=1)
    return given.clamp(min=1) if isinstance(given, Tensor) else max(given, 1)
