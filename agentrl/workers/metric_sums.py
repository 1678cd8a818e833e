"""Weighted means over micro-batches, mini-batches and ranks."""

from __future__ import annotations

import torch

from agentrl.workers.collectives import gather_objects

Number = float | torch.Tensor


class MetricSums:
    """Collects `value * weight` and `weight` by name; values stay on their device until `reduce`."""

    def __init__(self) -> None:
        self._sums: dict[str, list[Number]] = {}

    def add(self, name: str, value: Number, weight: Number = 1.0) -> None:
        """Add one value. A mean over tokens has the number of tokens as weight."""
        if isinstance(value, torch.Tensor):
            value = value.detach()
        total, weights = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = [total + value * weight, weights + weight]

    def reduce(self) -> dict[str, float]:
        """The means over all ranks, the same on every rank. A collective call."""
        own = {name: (float(total), float(weight)) for name, (total, weight) in self._sums.items()}
        ranks: list[dict[str, tuple[float, float]]] = gather_objects(own)
        means = {}
        for name in dict.fromkeys(name for rank in ranks for name in rank):
            pairs = [rank[name] for rank in ranks if name in rank]
            weight = sum(pair[1] for pair in pairs)
            means[name] = sum(pair[0] for pair in pairs) / weight if weight else 0.0
        return means
