"""Chooses the attention of a model, and registers those over packed runs with transformers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from agentrl.errors import ConfigError
from agentrl.workers.sequence import SEQUENCE, SequenceRanks

VARLEN = "agentrl_varlen"
"""Name of the variable-length kernel in transformers' registry of attention functions."""
ULYSSES = "agentrl_ulysses"
"""Name of the attention over rows that several ranks share; see `sequence.py`."""
PACKED = (VARLEN, ULYSSES)
"""Those that read packed runs."""
WITHOUT = {
    VARLEN: "does not keep the runs of a packed row apart: set use_remove_padding=false for this model",
    ULYSSES: "knows nothing of ranks that share a row: set ulysses_sequence_parallel_size=1 for this model",
}
"""What attention that is not one of `PACKED` lacks, and the key that does without."""


def choose_attention(device: torch.device, compute_dtype: torch.dtype, *, remove_padding: bool, sp: int = 1) -> str:
    """The attention implementation for `from_pretrained`: packed rows only if the kernel skips masked blocks.

    Otherwise rows of similar lengths go together through torch's fused attention, which then needs no mask. Rows that
    `sp` ranks share are always packed.
    """
    if sp > 1:
        register_ulysses()
        return ULYSSES
    if remove_padding and has_varlen(device, compute_dtype):
        register_varlen()
        return VARLEN
    return "sdpa"


def has_varlen(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch's variable-length kernel runs on this device in this data type."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    return bool(torch.cuda.get_device_capability(device)[0] >= 8)


def register_varlen() -> None:
    """Register `VARLEN` with transformers; calling it again does nothing."""
    from transformers import AttentionInterface

    # No mask goes with it: transformers would look in the positions for packed runs, and wait for the GPU to do so.
    AttentionInterface.register(VARLEN, varlen_attention)


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

    refuse_other_scores(module, softcap, s_aux)
    require_runs(module, kwargs, VARLEN)
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


def register_ulysses() -> None:
    """Register `ULYSSES` with transformers; calling it again does nothing."""
    from transformers import AttentionInterface

    # No mask goes with it: transformers would look in the positions for packed runs, and wait for the GPU to do so.
    AttentionInterface.register(ULYSSES, ulysses_attention)


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
        **kwargs: as `varlen_attention` takes them, and `SEQUENCE`.

    Returns:
        (1, n, heads, D), and None for the attention weights.
    """
    require_runs(module, kwargs, ULYSSES)
    ranks: SequenceRanks = kwargs.pop(SEQUENCE)
    query, key, value = (ranks.to_heads(states) for states in (query, ranks.repeated(key), ranks.repeated(value)))
    attend = varlen_attention if has_varlen(query.device, query.dtype) else run_by_run
    return ranks.to_tokens(attend(module, query, key, value, attention_mask, **kwargs)[0]), None


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
    """As `varlen_attention`, through torch's fused attention: for CPUs, float32 and older GPUs."""
    refuse_other_scores(module, kwargs.get("softcap"), kwargs.get("s_aux"))
    gqa, outputs = query.shape[1] != key.shape[1], []
    for start, stop in pairwise(kwargs["cu_seq_lens_q"].tolist()):
        seen = None
        if sliding_window is not None and stop - start > sliding_window:
            places = torch.arange(stop - start, device=query.device)
            behind = places[:, None] - places
            seen = (behind >= 0) & (behind < sliding_window)
        q, k, v = (states[:, :, start:stop] for states in (query, key, value))
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=seen, is_causal=seen is None, scale=scaling, enable_gqa=gqa
        )
        outputs.append(out.transpose(1, 2))
    return torch.cat(outputs, 1), None


def require_runs(module: nn.Module, passed: dict[str, Any], attention: str) -> None:
    """Refuse a model that does not hand the arguments of its forward pass on to its attention.

    Raises:
        ConfigError: `passed` lacks what says which tokens belong together, or the ranks of the row.
    """
    if "cu_seq_lens_q" not in passed or (attention == ULYSSES and SEQUENCE not in passed):
        raise ConfigError(
            f"{type(module).__name__} is not told which tokens belong together, so it {WITHOUT[attention]}"
        )


def refuse_other_scores(module: nn.Module, softcap: float | None, s_aux: torch.Tensor | None) -> None:
    """Refuse scores that no attention over packed runs computes.

    Raises:
        ConfigError: there is a soft cap, or there are sinks.
    """
    if softcap is not None or s_aux is not None:
        raise ConfigError(
            f"{type(module).__name__} needs soft-capped scores or attention sinks, which packed rows do not support: "
            "set actor_rollout_ref.model.use_remove_padding=false"
        )
