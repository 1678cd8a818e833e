"""Attention over packed runs whose tokens lie on several ranks; see `sequence.py`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from agentrl.workers.attention import ULYSSES, has_varlen, refuse_other_scores, varlen_attention
from agentrl.workers.sequence import SEQUENCE, SequenceRanks


def register_ulysses() -> None:
    """Register `ULYSSES` with transformers; calling it again does nothing."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

    AttentionInterface.register(ULYSSES, ulysses_attention)
    AttentionMaskInterface.register(ULYSSES, flash_attention_mask)


def ulysses_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each packed run; the signature is transformers' own.

    Args:
        module: the attention layer.
        query: (1, heads, n, D), of this rank's tokens.
        key: (1, kv_heads, n, D).
        value: (1, kv_heads, n, D).
        attention_mask: always None here.
        **kwargs: as `attention.varlen_attention` takes them, and `SEQUENCE`.

    Returns:
        (1, n, heads, D), and None for the attention weights.
    """
    ranks: SequenceRanks = kwargs.pop(SEQUENCE)
    whole = [ranks.to_heads(states) for states in (query, ranks.repeated(key), ranks.repeated(value))]
    attend = varlen_attention if has_varlen(query.device, query.dtype) else run_by_run
    return ranks.to_tokens(attend(module, *whole, attention_mask, **kwargs)[0]), None


def run_by_run(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """As `attention.varlen_attention`, through torch's fused attention: for CPUs, float32 and older GPUs."""
    refuse_other_scores(module, kwargs.get("softcap"), kwargs.get("s_aux"))
    gqa, outputs = query.shape[1] != key.shape[1], []
    for start, stop in pairwise(kwargs["cu_seq_lens_q"].tolist()):
        seen = None
        if sliding_window is not None and stop - start > sliding_window:
            places = torch.arange(stop - start, device=query.device)
            behind = places[:, None] - places
            seen = (behind >= 0) & (behind < sliding_window)
        run = [states[:, :, start:stop] for states in (query, key, value)]
        out = scaled_dot_product_attention(*run, attn_mask=seen, is_causal=seen is None, scale=scaling, enable_gqa=gqa)
        outputs.append(out.transpose(1, 2))
    return torch.cat(outputs, 1), None
