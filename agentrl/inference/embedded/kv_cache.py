"""Keys and values of every slot. A slot holds one request's tokens; all slots grow together, to the same length."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.inference.embedded.model_spec import ModelSpec

LENGTH_STEP = 128


class KVCache:
    """One tensor `(layers, 2, slots, kv_heads, length, head_dim)`, index 0 of the second axis keys, 1 values.

    Slots and heads are adjacent axes, so the keys of slots `0..n` are one batch of matrices without a copy. The tensor
    starts small and doubles on demand, so that memory follows what requests use, not what they could use.
    """

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
        self.spec, self.dtype, self.device = spec, dtype, device
        self.data = self._zeros(0, 0)

    @property
    def slots(self) -> int:
        """Number of allocated slots."""
        return self.data.shape[2]

    @property
    def length(self) -> int:
        """Number of allocated tokens per slot."""
        return self.data.shape[4]

    @property
    def bytes_per_token(self) -> int:
        """Memory of one token in one slot."""
        return 2 * self.spec.num_layers * self.spec.num_kv_heads * self.spec.head_dim * self.dtype.itemsize

    def resize(self, slots: int, length: int) -> None:
        """Change the shape; whatever fits into the new one is kept, the rest is zeros."""
        old, new = self.data, self._zeros(slots, length)
        s, n = min(old.shape[2], slots), min(old.shape[4], length)
        new[:, :, :s, :, :n] = old[:, :, :s, :, :n]
        self.data = new

    def copy_rows(self, source: int, target: int, length: int) -> None:
        """Give slot `target` the first `length` tokens of slot `source`."""
        self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]

    def swap(self, left: int, right: int, length: int) -> None:
        """Exchange the first `length` tokens of two slots."""
        kept = self.data[:, :, left, :, :length].clone()
        self.data[:, :, left, :, :length] = self.data[:, :, right, :, :length]
        self.data[:, :, right, :, :length] = kept

    def clear(self, slot: int) -> None:
        """Zero a slot: NaN left in it would leak through masked positions (0 * NaN is NaN)."""
        self.data[:, :, slot] = 0

    def _zeros(self, slots: int, length: int) -> Tensor:
        s = self.spec
        shape = (s.num_layers, 2, slots, s.num_kv_heads, length, s.head_dim)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)
