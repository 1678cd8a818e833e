"""The critic's loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from agentrl.algorithms.aggregation import aggregate_loss
from agentrl.algorithms.masked import zero_outside


def value_loss(
    vpreds: Tensor,
    returns: Tensor,
    old_values: Tensor,
    mask: Tensor,
    *,
    cliprange: float,
    loss_agg_mode: str = "token-mean",
    scale: float | None = None,
    num_tokens: float | Tensor | None = None,
    num_sequences: float | Tensor | None = None,
    tensor_metrics: bool = False,
) -> tuple[Tensor, Any]:
    """Clipped squared error: `max((V - ret)^2, (clip(V, old ± cliprange) - ret)^2) / 2` (PPO2; arXiv 2006.05990).

    Args:
        vpreds: `(B, T)`, the critic's output; the only argument that gets a gradient.
        returns: `(B, T)`.
        old_values: `(B, T)`, the critic's output at the start of the update.
        mask: `(B, T)`.
        cliprange: how far a value may move.
        loss_agg_mode: see `aggregate_loss`.
        scale: see `LossShare`, also for the next two.
        num_tokens: see above.
        num_sequences: see above.
        tensor_metrics: give the fraction as a tensor: to read a number from a GPU waits for it.

    Returns:
        A scalar, and the fraction of tokens whose clipped error is the larger one.
    """
    vpreds, returns, old_values = (zero_outside(values, mask) for values in (vpreds, returns, old_values))
    clipped = torch.maximum(torch.minimum(vpreds, old_values + cliprange), old_values - cliprange)
    plain_error, clipped_error = (vpreds - returns).square(), (clipped - returns).square()
    loss = aggregate_loss(
        0.5 * torch.maximum(plain_error, clipped_error),
        mask,
        loss_agg_mode,
        scale=scale,
        num_tokens=num_tokens,
        num_sequences=num_sequences,
    )
    worse = (clipped_error > plain_error).to(vpreds.dtype)
    clipped_share = aggregate_loss(worse, mask, "token-mean", num_tokens=num_tokens)
    return loss, clipped_share if tensor_metrics else float(clipped_share)
