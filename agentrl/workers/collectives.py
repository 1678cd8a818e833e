"""Small exchanges between ranks over CPU tensors; with one rank they cost nothing.

Where `copies` neighbouring ranks hold the same rows (`workers/mesh.py`), their values count once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def backend_for(device: torch.device) -> str:
    """The process-group backend: gloo for CPU tensors everywhere, nccl beside it on GPUs."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def sum_over_ranks(values: list[float], copies: int = 1) -> list[float]:
    """Elementwise sum, exact for counts below 2**53 / copies."""
    return [total / copies for total in _reduce(values, dist.ReduceOp.SUM)]


def max_over_ranks(values: list[float]) -> list[float]:
    """Elementwise maximum."""
    return _reduce(values, dist.ReduceOp.MAX)


def gather_objects(value: Any, copies: int = 1) -> list[Any]:
    """One value per rank, or per `copies` ranks, on every rank."""
    if _alone():
        return [value]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered[::copies]


class Summed(torch.autograd.Function):
    """Add up the tensors of a group of ranks that all compute the same loss from the sum.

    Each rank's gradient is then the gradient of its own summand: nothing is exchanged on the way back.
    """

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: Any) -> torch.Tensor:
        """The sum, on every rank."""
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """As it is."""
        return gradient, None


def _alone() -> bool:
    return not dist.is_initialized() or dist.get_world_size() == 1


def _reduce(values: list[float], op: Any) -> list[float]:
    if _alone():
        return values
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, op=op)
    reduced: list[float] = tensor.tolist()
    return reduced
