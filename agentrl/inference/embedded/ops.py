"""The operations of a step besides matrix products, in torch: the reference for `native_ops`, and used on CUDA."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DirectRows:
    """The first `count` tokens of a step, each of which attends to its slot up to its position."""

    count: int
    span: int
    """All their slots are below this number."""
    slots: Tensor | None
    """`(count,)` slot of each token; None: token i belongs to slot i, or the operations do not need it."""
    bias: Tensor | None
    """`(span * K, 1, L)`: 0 where a slot may look, -inf elsewhere; None if the operations do not need it."""


class TorchOps:
    """The operations on any device and type. `H` query heads, `K` key heads, `D` features, `N` tokens."""

    direct_tokens = 1
    """Rows of at most this many tokens go to `attention`; longer ones are padded to blocks."""
    wants_bias = True
    """`attention` needs `DirectRows.bias`, takes one row per slot, and computes idle slots of the span too."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root-mean-square norm over the last axis."""
        return F.rms_norm(x, weight.shape, weight, eps)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """`silu(gate) * up` of `(N, 2 * width)`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def rotate_and_store(
        self, qkv: Tensor, rotations: Tensor, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        """Rotate queries and keys of `qkv (N, H + 2K, D)` in place and store keys and values.

        Args:
            qkv: result of the projection.
            rotations: complex `(positions, D / 2)`.
            slots: `(N,)`.
            positions: `(N,)`.
            keys: the layer's cache `(slots, K, length, D)`.
            values: likewise.
        """
        turn_and_store(qkv, rotations[positions], slots, positions, keys, values)

    def attention(
        self, qkv: Tensor, keys: Tensor, values: Tensor, slots: Tensor, positions: Tensor, rows: DirectRows
    ) -> Tensor:
        """Attention of the first `rows.count` tokens: `(count, H * D)`.

        The scale is folded into the queries. `slots` and `positions` are the step's.
        """
        assert rows.bias is not None
        kv_heads, length = keys.shape[1], rows.bias.shape[2]
        q = qkv[: rows.count, : -2 * kv_heads]
        if rows.slots is not None:
            q = q.new_zeros((rows.span, *q.shape[1:])).index_copy_(0, rows.slots, q)
        q = q.reshape(rows.span * kv_heads, -1, q.shape[-1])
        k = keys[: rows.span, :, :length].flatten(0, 1)
        v = values[: rows.span, :, :length].flatten(0, 1)
        scores = torch.baddbmm(rows.bias, q, k.transpose(1, 2))
        out = torch.bmm(torch.softmax(scores, dim=-1), v).view(rows.span, -1)
        return out if rows.slots is None else out[rows.slots]

    def sample(self, logits: Tensor, temperature: Tensor, greedy: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Sample from the whole distribution of each row.

        Args:
            logits: float32 `(rows, vocab)`.
            temperature: divides the logits `(rows,)`.
            greedy: rows that take the most likely token instead `(rows,)`.
            u: uniform numbers in [0, 1) `(rows,)`.

        Returns:
            ids and their log-probs, `(rows,)` each.
        """
        log_probs = torch.log_softmax(logits / temperature[:, None], dim=-1)
        ids = torch.where(greedy, log_probs.argmax(dim=-1), invert(log_probs.exp(), u))
        return ids, log_probs.gather(1, ids[:, None]).squeeze(1)


def turn_and_store(qkv: Tensor, turns: Tensor, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
    """As `TorchOps.rotate_and_store`, with the rotation of each token, complex `(N, D / 2)`."""
    kv_heads = keys.shape[1]
    qk, turn = qkv[:, :-kv_heads], turns.unsqueeze(1)
    if qkv.dtype == torch.float32:
        torch.view_as_complex(qk.view(*qk.shape[:-1], -1, 2)).mul_(turn)
    else:
        exact = qk.float()
        turned = torch.view_as_complex(exact.view(*exact.shape[:-1], -1, 2)) * turn
        qk.copy_(torch.view_as_real(turned).flatten(-2))
    keys[slots, :, positions] = qkv[:, -2 * kv_heads : -kv_heads]
    values[slots, :, positions] = qkv[:, -kv_heads:]


def invert(weights: Tensor, u: Tensor) -> Tensor:
    """Index at which the running sum of the weights `(rows, n)` exceeds the share `u` `(rows,)` of the total."""
    sums = weights.cumsum(dim=-1)
    ids = torch.searchsorted(sums, u[:, None] * sums[:, -1:], right=True).squeeze(1)
    return ids.clamp_(max=weights.shape[1] - 1)  # rounding can make u * total equal to the total
