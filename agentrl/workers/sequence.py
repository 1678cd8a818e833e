"""Ulysses: the ranks of a row each read a part of its tokens, and each computes the attention of a part of its heads.

Everything but attention looks at single tokens, so a rank needs only its own. Around attention two exchanges swap parts
of the sequence for parts of the heads (Jacobs et al., arXiv 2309.14509). Two ranks, heads a and b, tokens 0 to 3::

    rank 0 has   a0 a1 b0 b1      exchange      a0 a1 a2 a3     attention of head a, exchange back
    rank 1 has   a2 a3 b2 b3      -------->     b0 b1 b2 b3

Each chosen token is computed where its hidden state lies; `join` gives all of them to every rank. So every rank of a
row computes the same loss, and its gradient is that of its own tokens: the sum over ranks is the whole gradient.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F

from agentrl.workers.collectives import Summed
from agentrl.workers.micro_batches import MicroBatch

SEQUENCE = "sequence_ranks"
"""The argument of the attention function that names the ranks of a row."""


class SequenceRanks:
    """The ranks that hold the parts of one row.

    Args:
        group: their process group.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.size = dist.get_world_size(group)
        self.index = dist.get_rank(group)

    def part_of(self, micro: MicroBatch) -> tuple[MicroBatch, torch.Tensor]:
        """This rank's tokens of a packed micro-batch, and which of its chosen tokens they predict (k,).

        Seven tokens on two ranks: padded to eight with a run of one token, four each.
        """
        count = micro.input_ids.shape[1]
        spare = -count % self.size
        share = (count + spare) // self.size
        first = self.index * share
        positions = micro.position_ids
        if positions is None:  # a placeholder: one token
            positions = torch.zeros_like(micro.input_ids)
        # How many there are is counted in host memory: on a GPU that would wait for everything before it.
        sources = micro.sources if micro.host_sources is None else micro.host_sources
        own = ((sources >= first) & (sources < first + share)).nonzero().flatten().to(micro.sources.device)
        part = replace(
            micro,
            input_ids=F.pad(micro.input_ids, (0, spare))[:, first : first + share],
            position_ids=F.pad(positions, (0, spare))[:, first : first + share],
            sources=micro.sources[own] - first,
            labels=micro.labels[own],
            kernel_args={**_with_run(micro.kernel_args, count, spare), SEQUENCE: self},
        )
        return part, own

    def join(self, values_k: torch.Tensor, own: torch.Tensor, count: int) -> torch.Tensor:
        """The values (K,) of all chosen tokens from those of each rank; keeps the gradient of this rank's."""
        zeros = torch.zeros(count, dtype=torch.uint8 if values_k.dtype == torch.bool else values_k.dtype)
        whole = zeros.to(values_k.device).index_copy(0, own, values_k.to(zeros.dtype))
        joined: torch.Tensor = Summed.apply(whole, self.group)  # type: ignore[no-untyped-call]
        return joined.to(values_k.dtype)

    def to_heads(self, states: torch.Tensor) -> torch.Tensor:
        """All heads of this rank's tokens (1, H, n, D) -> this rank's heads of all tokens (1, H / ranks, N, D)."""
        _, heads, _, width = states.shape
        blocks = states[0].reshape(self.size, heads // self.size, -1, width)
        return self._exchange(blocks).transpose(0, 1).reshape(1, heads // self.size, -1, width)

    def to_tokens(self, states: torch.Tensor) -> torch.Tensor:
        """This rank's heads of all tokens (1, N, H / ranks, D) -> all heads of this rank's tokens (1, n, H, D)."""
        blocks = states[0].reshape(self.size, -1, *states.shape[2:])
        return self._exchange(blocks).transpose(0, 1).flatten(1, 2)[None]

    def repeated(self, states: torch.Tensor) -> torch.Tensor:
        """Heads of keys or values (1, H, n, D), repeated as often as it takes to give every rank equally many.

        Two heads on four ranks are read twice each; query head `h` of 8 then reads head `h // 2` instead of `h // 4`.
        """
        times = self.size // math.gcd(self.size, states.shape[1])
        return states if times == 1 else states.repeat_interleave(times, 1)

    def _exchange(self, blocks: torch.Tensor) -> torch.Tensor:
        exchanged: torch.Tensor = _Exchange.apply(blocks, self.group)  # type: ignore[no-untyped-call]
        return exchanged


class _Exchange(torch.autograd.Function):
    """Send block `i` to rank `i`, get one block from each: its own transpose, so the gradient takes the same way."""

    @staticmethod
    def forward(ctx: Any, blocks: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _swap(blocks, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _swap(gradient, ctx.group), None


def _swap(blocks: torch.Tensor, group: Any) -> torch.Tensor:
    blocks = blocks.contiguous()
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks, group=group)
    return received


def _with_run(kernel_args: dict[str, Any], count: int, spare: int) -> dict[str, Any]:
    """The runs of a packed micro-batch, and one more of the padding: no kernel leaves its states unwritten."""
    starts, longest = kernel_args["cu_seq_lens_q"], kernel_args["max_length_q"]
    if not spare:
        return {"cu_seq_lens_q": starts, "max_length_q": longest}
    starts = F.pad(starts, (0, 1), value=count + spare)
    return {"cu_seq_lens_q": starts, "max_length_q": max(longest, spare)}
