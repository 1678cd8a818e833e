"""Log-probs and entropies of chosen tokens, without keeping logits of the whole vocabulary for every position."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

Head = Callable[[torch.Tensor], torch.Tensor]
"""Hidden states (K, H) -> logits (K, V)."""

LOGITS_PER_CHUNK = {"cpu": 2**26, "cuda": 2**28}
"""Most logits that exist at the same time, by device type: 256 MiB and 1 GiB in float32."""


class EntropyMode(Enum):
    """Whether the entropy of each token's distribution is wanted, and whether it carries a gradient."""

    NONE = "none"
    VALUE = "value"
    GRADIENT = "gradient"


def token_log_probs(
    head: Head,
    hidden_KH: torch.Tensor,
    labels_K: torch.Tensor,
    vocab_size: int,
    *,
    temperature: float = 1.0,
    entropy: EntropyMode = EntropyMode.NONE,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-prob of each label under `softmax(head(hidden) / temperature)`, in float32.

    Works through the positions in chunks; with a gradient, the logits of a chunk are computed again in the backward
    pass, so at no time do more than `LOGITS_PER_CHUNK` of them exist.

    Returns:
        log-probs (K,) and entropies (K,) or None.
    """
    parts = _by_chunks(_chunk_stats, head, hidden_KH, labels_K, vocab_size, temperature, entropy)
    log_probs = torch.cat([part[0] for part in parts])
    if entropy is EntropyMode.NONE:
        return log_probs, None
    return log_probs, torch.cat([part[1] for part in parts])


def token_hits(
    head: Head, hidden_KH: torch.Tensor, labels_K: torch.Tensor, vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `token_log_probs`, with (K,) whether each label is the most likely token, in place of entropies."""
    parts = _by_chunks(_chunk_hits, head, hidden_KH, labels_K, vocab_size)
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _by_chunks(
    stats: Callable[..., tuple[torch.Tensor, Any]],
    head: Head,
    hidden_KH: torch.Tensor,
    labels_K: torch.Tensor,
    vocab_size: int,
    *args: Any,
) -> list[tuple[torch.Tensor, Any]]:
    rows = max(1, LOGITS_PER_CHUNK[hidden_KH.device.type] // vocab_size)
    if len(labels_K) <= rows:
        return [stats(head, hidden_KH, labels_K, *args)]
    parts = []
    for hidden, labels in zip(torch.split(hidden_KH, rows), torch.split(labels_K, rows), strict=True):
        if torch.is_grad_enabled():
            parts.append(checkpoint(stats, head, hidden, labels, *args, use_reentrant=False))
        else:
            parts.append(stats(head, hidden, labels, *args))
    return parts


def _chunk_hits(head: Head, hidden: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(hidden).float()
    picked = -F.cross_entropy(logits, labels, reduction="none")
    return picked, logits.detach().argmax(-1) == labels


def _chunk_stats(
    head: Head, hidden: torch.Tensor, labels: torch.Tensor, temperature: float, entropy: EntropyMode
) -> tuple[torch.Tensor, torch.Tensor | None]:
    logits = head(hidden).float()
    if temperature != 1.0:
        logits = logits / temperature
    log_p = F.log_softmax(logits, dim=-1)
    picked = -F.nll_loss(log_p, labels, reduction="none")
    if entropy is EntropyMode.NONE:
        return picked, None
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy is EntropyMode.GRADIENT):
        return picked, -(log_p.exp() * log_p).sum(-1)
