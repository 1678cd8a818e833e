"""Rotary position embedding as one complex multiplication.

Hugging Face pairs feature `i` of a head with feature `i + head_dim/2`. The decoder stores the rows of the query and key
projections so that the two are adjacent (`pairing`; for a head of 6: 0 3 1 4 2 5). A rotation is then a product of
complex numbers, one tensor operation instead of six. Dot products of queries and keys do not change, because both are
permuted in the same way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.errors import UserInputError
from agentrl.inference.embedded.model_spec import ModelSpec

STATIC_TYPES = ("default", "linear", "llama3", "yarn")


def pairing(head_dim: int) -> Tensor:
    """Order of a head's features in which the two parts of each rotation are adjacent."""
    half = head_dim // 2
    return torch.stack([torch.arange(half), torch.arange(half) + half], dim=1).flatten()


def rotation_table(spec: ModelSpec, length: int, device: torch.device) -> Tensor:
    """Rotations of all positions: complex64 `(length, head_dim / 2)`.

    Raises:
        UserInputError: a rope type whose frequencies depend on the length of the request.
    """
    inv_freq, scale = _frequencies(spec)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inv_freq)
    return torch.polar(torch.full_like(angles, scale), angles).to(device)


def _frequencies(spec: ModelSpec) -> tuple[Tensor, float]:
    kind = spec.rope["rope_type"]
    if kind not in STATIC_TYPES:
        raise UserInputError(f"got rope type '{kind}'; the embedded engine supports only {', '.join(STATIC_TYPES)}")
    if spec.rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserInputError("partial rotary embedding is not supported by the embedded engine")
    if kind == "default":
        exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
        return 1.0 / (float(spec.rope["rope_theta"]) ** exponents), 1.0
    # Imported only for the rare scaled kinds: transformers takes seconds to import.
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = AutoConfig.for_model(**spec.raw)
    inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return inv_freq, float(scale)
