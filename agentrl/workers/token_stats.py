"""Log-probs and entropies of chosen tokens, without keeping logits of the whole vocabulary for every position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from agentrl.workers.collectives import Summed
from agentrl.workers.head_stats import Beside, head_stats, plain_weight

Head = Callable[[torch.Tensor], torch.Tensor]
"""Hidden states (K, H) -> logits (K, V)."""

LOGITS_PER_CHUNK = 2**26
"""Most logits that exist at the same time: 256 MiB in float32; a step holds two such tensors."""
FEWEST_LOGITS = 2**21
"""With fewer a matrix product has too few rows to be worth its launch."""
BYTES_PER_LOGIT, SHARE_OF_FREE_MEMORY = 8, 0.25


class EntropyMode(Enum):
    """Whether the entropy of each token's distribution is wanted, and whether it carries a gradient."""

    NONE = "none"
    VALUE = "value"
    GRADIENT = "gradient"


_BESIDE = {
    EntropyMode.NONE: Beside.NOTHING,
    EntropyMode.VALUE: Beside.ENTROPY,
    EntropyMode.GRADIENT: Beside.ENTROPY_WITH_GRADIENT,
}


@dataclass(frozen=True, slots=True)
class VocabPart:
    """The ranks whose heads each give the logits of a part of the vocabulary, and the first id of this rank's part."""

    group: Any
    first: int

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, for ranks that all compute the same loss from it."""
        total: torch.Tensor = Summed.apply(values, self.group)  # type: ignore[no-untyped-call]
        return total

    def extreme(self, values: torch.Tensor, op: Any) -> torch.Tensor:
        """The maximum or minimum over ranks, without a gradient."""
        values = values.detach().clone()
        dist.all_reduce(values, op=op, group=self.group)
        return values


def token_log_probs(
    head: Head,
    hidden_KH: torch.Tensor,
    labels_K: torch.Tensor,
    vocab_size: int,
    *,
    temperature: float = 1.0,
    entropy: EntropyMode = EntropyMode.NONE,
    part: VocabPart | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-prob of each label under `softmax(head(hidden) / temperature)`, in float32.

    `part` says that `head` gives only this rank's columns of the logits; then this is a collective call.

    Works through the positions in chunks; with a gradient, the logits of several chunks are computed again in the
    backward pass, so at no time do more than `logits_per_chunk` of them exist.

    Returns:
        log-probs (K,) and entropies (K,) or None.
    """
    if (weight := plain_weight(head)) is not None:
        rows = _rows(hidden_KH, vocab_size, None)
        return head_stats(weight, hidden_KH, labels_K, temperature, _BESIDE[entropy], rows)
    parts = _by_chunks(_chunk_stats, head, hidden_KH, labels_K, vocab_size, temperature, entropy, part)
    log_probs = torch.cat([part[0] for part in parts])
    if entropy is EntropyMode.NONE:
        return log_probs, None
    return log_probs, torch.cat([part[1] for part in parts])


def token_hits(
    head: Head, hidden_KH: torch.Tensor, labels_K: torch.Tensor, vocab_size: int, part: VocabPart | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `token_log_probs`, with (K,) whether each label is the most likely token, in place of entropies."""
    if (weight := plain_weight(head)) is not None:
        log_probs, hits = head_stats(weight, hidden_KH, labels_K, 1.0, Beside.HIT, _rows(hidden_KH, vocab_size, None))
        assert hits is not None
        return log_probs, hits.bool()
    parts = _by_chunks(_chunk_hits, head, hidden_KH, labels_K, vocab_size, part)
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def logits_per_chunk(device: torch.device) -> int:
    """How many logits may exist at the same time: `LOGITS_PER_CHUNK`, or what a GPU has room for.

    They and what is made of them get a quarter of the free memory, what torch keeps for later included. Powers of two,
    so that a few free bytes more or less change no sum: with 1.5 GiB free, 384 MiB are room for 50 million, so 2^25.
    Deterministic runs always take the same.
    """
    if device.type != "cuda" or torch.are_deterministic_algorithms_enabled():
        return LOGITS_PER_CHUNK
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    fit = max(1, int(free * SHARE_OF_FREE_MEMORY) // BYTES_PER_LOGIT)
    return min(LOGITS_PER_CHUNK, max(FEWEST_LOGITS, 1 << (fit.bit_length() - 1)))


def _rows(hidden_KH: torch.Tensor, vocab_size: int, part: VocabPart | None) -> int:
    """Positions of a chunk; the same on all ranks that share a vocabulary, since they meet in every chunk."""
    logits = logits_per_chunk(hidden_KH.device)
    if part is not None and hidden_KH.device.type == "cuda":  # a number in host memory: no GPU is waited for
        logits = int(part.extreme(torch.tensor(logits), dist.ReduceOp.MIN))
    return max(1, logits // vocab_size)


def _by_chunks(
    stats: Callable[..., tuple[torch.Tensor, Any]],
    head: Head,
    hidden_KH: torch.Tensor,
    labels_K: torch.Tensor,
    vocab_size: int,
    *args: Any,
) -> list[tuple[torch.Tensor, Any]]:
    # The last of `args` is the part of the vocabulary in both.
    rows = max(1, _rows(hidden_KH, vocab_size, args[-1]) // 2)  # autograd holds four tensors of this size
    if len(labels_K) <= rows:
        return [stats(head, hidden_KH, labels_K, *args)]
    parts = []
    for hidden, labels in zip(torch.split(hidden_KH, rows), torch.split(labels_K, rows), strict=True):
        if torch.is_grad_enabled():
            parts.append(checkpoint(stats, head, hidden, labels, *args, use_reentrant=False))
        else:
            parts.append(stats(head, hidden, labels, *args))
    return parts


def _chunk_hits(
    head: Head, hidden: torch.Tensor, labels: torch.Tensor, part: VocabPart | None
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(hidden).float()
    if part is not None:
        picked, _ = _stats_of_part(logits, labels, EntropyMode.NONE, part)
        return picked, _best_of_parts(logits.detach(), part) == labels
    picked = -F.cross_entropy(logits, labels, reduction="none")
    return picked, logits.detach().argmax(-1) == labels


def _chunk_stats(
    head: Head,
    hidden: torch.Tensor,
    labels: torch.Tensor,
    temperature: float,
    entropy: EntropyMode,
    part: VocabPart | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    logits = head(hidden).float()
    if temperature != 1.0:
        logits = logits / temperature
    if part is not None:
        return _stats_of_part(logits, labels, entropy, part)
    log_p = F.log_softmax(logits, dim=-1)
    picked = -F.nll_loss(log_p, labels, reduction="none")
    if entropy is EntropyMode.NONE:
        return picked, None
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy is EntropyMode.GRADIENT):
        return picked, -(log_p.exp() * log_p).sum(-1)


def _stats_of_part(
    logits: torch.Tensor, labels: torch.Tensor, entropy: EntropyMode, part: VocabPart
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probs and entropies from this rank's columns (k, V / ranks) of the logits.

    With `s = logits - max` and `Z = sum(exp(s))` over all ranks' columns, a log-prob is `s_label - log Z` and the
    entropy `log Z - sum(exp(s) * s) / Z`. No term inside a sum over ranks holds a result of another: each rank's
    gradient of a summand is then the whole gradient of its own columns.
    """
    shifted = logits - part.extreme(logits.amax(-1), dist.ReduceOp.MAX)[:, None]
    weights = shifted.exp()
    total = part.sum(weights.sum(-1))
    places = labels - part.first
    own = (places >= 0) & (places < logits.shape[1])
    at_label = shifted.gather(1, places.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
    picked = part.sum(torch.where(own, at_label, 0.0)) - total.log()
    if entropy is EntropyMode.NONE:
        return picked, None
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy is EntropyMode.GRADIENT):
        return picked, total.log() - part.sum((weights * shifted).sum(-1)) / total


def _best_of_parts(logits: torch.Tensor, part: VocabPart) -> torch.Tensor:
    """(k,) the most likely id; the lowest of several that are equally likely on different ranks."""
    value, place = logits.max(-1)
    best = part.extreme(value, dist.ReduceOp.MAX)
    ids = torch.where(value == best, place + part.first, torch.iinfo(torch.long).max)
    return part.extreme(ids, dist.ReduceOp.MIN)
