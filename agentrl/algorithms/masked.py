"""Statistics over the tokens whose mask is 1."""

from __future__ import annotations

import torch
from torch import Tensor


def zero_outside(values: Tensor, mask: Tensor) -> Tensor:
    """`values` where the mask is set, exact zeros elsewhere: a NaN there reaches neither value nor gradient."""
    return torch.where(mask.bool(), values, torch.zeros_like(values))


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean over the mask, along `dim` or over everything; 0 where the mask is empty."""
    kept = zero_outside(values, mask)
    counts = mask.bool().expand_as(kept)
    if dim is None:
        return kept.sum() / counts.sum().clamp(min=1)
    return kept.sum(dim) / counts.sum(dim).clamp(min=1)


def masked_whiten(values: Tensor, mask: Tensor, eps: float = 1e-8) -> Tensor:
    """`(x - mean) / sqrt(var + eps)` over the mask with the unbiased variance; 0 elsewhere and for a single token.

    Statistics are taken in float64, so that equal values whiten to exact zeros.
    """
    wide = zero_outside(values, mask).double()
    count = mask.bool().sum()
    centred = zero_outside(wide - wide.sum() / count.clamp(min=1), mask)
    variance = centred.square().sum() / (count - 1).clamp(min=1)
    return (centred * torch.rsqrt(variance + eps)).to(values.dtype)
