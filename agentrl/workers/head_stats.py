"""Log-probs under a plain output head, with next to no memory beside one chunk of logits.

Autograd would keep several tensors of the vocabulary's size for each position: logits, log-probs, their gradients. Here
a chunk's log-probs are all that exists: with many chunks they are computed again on the way back and turned into their
gradient, and the gradient of the head is added up in one tensor. With 4,096 positions, 150,000 ids and 64 million
logits at a time, that is half a GiB in place of four.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor


class Beside(Enum):
    """What is wanted beside the log-prob of each label."""

    NOTHING = "nothing"
    ENTROPY = "entropy"
    ENTROPY_WITH_GRADIENT = "entropy with gradient"
    HIT = "whether the label is the most likely token"


def plain_weight(head: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor | None:
    """The weight (V, H) if a head is nothing but a product with it; None: call the head."""
    if type(head) is not nn.Linear or head.bias is not None or isinstance(head.weight, DTensor):
        return None
    return None if head._forward_hooks or head._forward_pre_hooks else head.weight


def head_stats(
    weight: torch.Tensor, hidden_KH: torch.Tensor, labels_K: torch.Tensor, temperature: float, beside: Beside, rows: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probs (K,) of the labels in float32, and what is wanted beside them (K,).

    Args:
        weight: (V, H).
        hidden_KH: hidden states.
        labels_K: ids.
        temperature: logits are divided by it.
        beside: what else is wanted.
        rows: positions of a chunk.
    """
    found: tuple[torch.Tensor, torch.Tensor | None] = _HeadStats.apply(  # type: ignore[no-untyped-call]
        hidden_KH, weight, labels_K, temperature, beside, rows
    )
    return found


class _HeadStats(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        temperature: float,
        beside: Beside,
        rows: int,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `head_stats`. A single chunk's log-probs are kept, several are computed again."""
        picked = torch.empty(len(labels), dtype=torch.float32, device=hidden.device)
        more = None if beside is Beside.NOTHING else torch.empty_like(picked)
        kept = None
        for part in _chunks(len(labels), rows):
            log_p = _log_p(hidden[part], weight, temperature)
            picked[part] = log_p.gather(1, labels[part, None])[:, 0]
            if beside is Beside.HIT:
                more[part] = (log_p.argmax(-1) == labels[part]).float()  # type: ignore[index]
            elif more is not None:
                more[part] = -log_p.exp().mul_(log_p).sum(-1)
            kept = log_p if len(labels) <= rows and any(ctx.needs_input_grad) else None
            del log_p  # or it would live on while the next chunk's are computed
        learns = beside is Beside.ENTROPY_WITH_GRADIENT
        ctx.save_for_backward(hidden, weight, labels, kept, more if learns else None)
        ctx.temperature, ctx.rows = temperature, rows
        if more is not None and not learns:
            ctx.mark_non_differentiable(more)
        return picked, more

    @staticmethod
    def backward(
        ctx: Any, gradient: torch.Tensor, gradient_of_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None, None, None]:
        """Gradients of hidden states and weight, chunk by chunk."""
        hidden, weight, labels, kept, entropies = ctx.saved_tensors
        of_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for part in _chunks(len(labels), ctx.rows):
            log_p = kept if kept is not None else _log_p(hidden[part], weight, ctx.temperature)
            if entropies is None or gradient_of_entropy is None:
                # d log p_label / d logit_j = [j is the label] - p_j
                of_logits = log_p.exp() if kept is not None else log_p.exp_()
                of_logits.mul_(-gradient[part, None])
            else:
                # d entropy / d logit_j = -p_j (log p_j + entropy)
                of_logits = log_p.exp()
                factor = log_p + entropies[part, None] if kept is not None else log_p.add_(entropies[part, None])
                factor.mul_(gradient_of_entropy[part, None]).add_(gradient[part, None])
                of_logits.mul_(factor).neg_()
                del factor
            del log_p
            of_logits.scatter_add_(1, labels[part, None], gradient[part, None])
            scaled = of_logits.div_(ctx.temperature).to(weight.dtype)
            del of_logits
            if of_hidden is not None:
                of_hidden[part] = scaled @ weight
            if of_weight is not None:
                of_weight.addmm_(scaled.T, hidden[part])
            del scaled
        return of_hidden, of_weight, None, None, None, None


def _log_p(hidden: torch.Tensor, weight: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = F.linear(hidden, weight).float()
    return F.log_softmax(logits if temperature == 1.0 else logits.div_(temperature), dim=-1)


def _chunks(count: int, rows: int) -> Iterator[slice]:
    return (slice(start, min(start + rows, count)) for start in range(0, count, rows))
