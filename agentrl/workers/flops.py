"""How much of a GPU's arithmetic an update uses: `perf/mfu/actor`."""

from __future__ import annotations

from typing import Any

import torch

from agentrl.placement.gpus import gpu_kind
from agentrl.workers.collectives import max_over_ranks, sum_over_ranks


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Operations per second of a device; None if unknown (CPUs, other data types, other GPUs)."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return None
    kind = gpu_kind(torch.cuda.get_device_name(device))
    return None if kind is None else kind.flops


class FlopCounter:
    """Counts the operations of training on rows: 6 per matrix weight and token, plus causal attention (PaLM, app. B).

    A frozen weight beside an adapter has no gradient of its own: 4 instead of 6.

    Args:
        lm: a dense causal language model, before it is sharded.
    """

    def __init__(self, lm: Any) -> None:
        config = lm.config.get_text_config()
        matrices = [part for name, part in lm.named_parameters() if part.ndim > 1 and ".visual." not in name]
        embedding = lm.get_input_embeddings().weight
        if embedding is not lm.get_output_embeddings().weight:  # looked up, not multiplied
            matrices = [parameter for parameter in matrices if parameter is not embedding]
        self._per_token = sum(parameter.numel() * (6 if parameter.requires_grad else 4) for parameter in matrices)
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._attention = config.num_hidden_layers * config.num_attention_heads * width

    def __call__(self, lengths: torch.Tensor) -> float:
        """Operations of a forward and backward pass over rows of these lengths; recomputation does not count."""
        lengths = lengths.double()
        return float(self._per_token * lengths.sum() + 6 * self._attention * lengths.square().sum())


def utilization(flops: float, seconds: float, peak: float | None) -> dict[str, float]:
    """`perf/mfu/actor`, the same on every rank; empty if the device's peak is unknown.

    Args:
        flops: operations for this rank's rows.
        seconds: of this rank's update.
        peak: operations per second of this rank's device.
    """
    if peak is None:
        return {}
    total, ranks = sum_over_ranks([flops, 1.0])
    return {"perf/mfu/actor": total / (max_over_ranks([seconds])[0] * peak * ranks)}
