"""Metrics of an update as sums of shares over micro-batches and ranks."""

from __future__ import annotations

import torch

from agentrl.workers.collectives import gather_objects


class MetricSums:
    """Adds up shares by name: what a micro-batch contributes to the mean over its mini-batch on all ranks.

    Shares stay on their device until `mean`, so that adding one never waits for a GPU.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float | torch.Tensor] = {}

    def add(self, name: str, share: float | torch.Tensor) -> None:
        """Add one share."""
        if isinstance(share, torch.Tensor):
            share = share.detach()
        self._sums[name] = self._sums.get(name, 0.0) + share

    def mean(self, mini_batches: int) -> dict[str, float]:
        """The sums over all ranks divided by the number of mini-batches; equal on every rank. A collective call."""
        ranks: list[dict[str, float]] = gather_objects({name: float(total) for name, total in self._sums.items()})
        names = dict.fromkeys(name for rank in ranks for name in rank)
        return {name: sum(rank.get(name, 0.0) for rank in ranks) / max(1, mini_batches) for name in names}
