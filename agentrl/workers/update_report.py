"""The report of one training step of a model."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from agentrl.workers.collectives import gather_objects
from agentrl.workers.fsdp_model import StepReport


class UpdateReport:
    """Sums the shares of micro-batches in the mean over their mini-batch, and counts the steps taken and skipped.

    Shares stay on their device until `metrics`, so that adding one never waits for a GPU.

    Args:
        copies: how many neighbouring ranks have the same rows, whose shares count once.
    """

    def __init__(self, copies: int = 1) -> None:
        self._copies = copies
        self._sums: dict[str, float | torch.Tensor] = {}
        self._steps: list[StepReport] = []

    def add(self, shares: Mapping[str, float | torch.Tensor]) -> None:
        """Add one micro-batch's shares, by name; see `LossShare`."""
        for name, share in shares.items():
            own = share.detach() if isinstance(share, torch.Tensor) else share
            self._sums[name] = self._sums.get(name, 0.0) + own

    def add_step(self, step: StepReport) -> None:
        """Record one optimizer step, taken or not."""
        self._steps.append(step)

    def metrics(self) -> dict[str, float]:
        """The same on every rank. A collective call.

        Returns:
            The shares of all ranks, summed, as means over the mini-batches; `grad_norm`, the mean over the steps taken;
            `optimizer_steps`: their number; `skipped_steps`: the number of those skipped because their gradient was not
            finite, or because the rollout correction rejected all their tokens.
        """
        ranks: list[dict[str, float]] = gather_objects(_numbers(self._sums), self._copies)
        names = dict.fromkeys(name for rank in ranks for name in rank)
        mini_batches = max(1, len(self._steps))
        norms = [step.grad_norm for step in self._steps if step.taken]
        return {
            **{name: sum(rank.get(name, 0.0) for rank in ranks) / mini_batches for name in names},
            "grad_norm": sum(norms) / max(1, len(norms)),
            "optimizer_steps": float(len(norms)),
            "skipped_steps": float(len(self._steps) - len(norms)),
        }


def _numbers(sums: Mapping[str, float | torch.Tensor]) -> dict[str, float]:
    """All at once: the only time that an update's metrics wait for the GPU."""
    tensors = {name: total.double() for name, total in sums.items() if isinstance(total, torch.Tensor)}
    numbers = dict(zip(tensors, torch.stack(list(tensors.values())).tolist(), strict=True)) if tensors else {}
    return {name: float(numbers.get(name, total)) for name, total in sums.items()}
