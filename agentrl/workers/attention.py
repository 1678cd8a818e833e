"""Chooses the attention kernel of a model, and registers torch's variable-length attention with transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from agentrl.errors import ConfigError

VARLEN = "agentrl_varlen"
"""Name of the variable-length kernel in transformers' registry of attention functions."""


def choose_attention(device: torch.device, compute_dtype: torch.dtype, *, remove_padding: bool) -> str:
    """The attention implementation for `from_pretrained`: packed rows only if the kernel skips masked blocks.

    Otherwise rows of similar lengths go together through torch's fused attention, which then needs no mask.
    """
    if remove_padding and device.type == "cuda" and compute_dtype in (torch.bfloat16, torch.float16):
        major, _ = torch.cuda.get_device_capability(device)
        if major >= 8:
            register_varlen()
            return VARLEN
    return "sdpa"


def register_varlen() -> None:
    """Register `VARLEN` with transformers; calling it again does nothing."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

    AttentionInterface.register(VARLEN, varlen_attention)
    AttentionMaskInterface.register(VARLEN, flash_attention_mask)


def varlen_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each packed run; the signature is transformers' own.

    Args:
        module: the attention layer.
        query: (1, heads, N, D).
        key: (1, kv_heads, N, D).
        value: (1, kv_heads, N, D).
        attention_mask: always None here.
        scaling: factor on the scores.
        dropout: always 0: agentrl trains without dropout.
        sliding_window: how many tokens back a token sees; None: all.
        softcap: not supported by the kernel.
        s_aux: attention sinks; not supported by the kernel.
        **kwargs: `cu_seq_lens_q` and `max_length_q` of the packed runs.

    Returns:
        (1, N, heads, D), and None for the attention weights.
    """
    from torch.nn.attention.varlen import varlen_attn

    if softcap is not None or s_aux is not None:
        raise ConfigError(
            f"{type(module).__name__} needs soft-capped scores or attention sinks, which packed rows do not support: "
            "set actor_rollout_ref.model.use_remove_padding=false"
        )
    starts, longest = kwargs["cu_seq_lens_q"], kwargs["max_length_q"]
    window = (-1, 0) if sliding_window is None else (sliding_window - 1, 0)
    out = varlen_attn(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        starts,
        starts,
        longest,
        longest,
        scale=scaling,
        window_size=window,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(out, torch.Tensor)
    return out[None], None
