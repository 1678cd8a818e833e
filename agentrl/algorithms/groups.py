"""Statistics within groups: the rollouts of one prompt share a group id."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from agentrl.algorithms.masked import zero_outside


def outcome(token_level_rewards: Tensor, response_mask: Tensor) -> Tensor:
    """R of each row, `(B,)` float64: the sum of its token rewards over the mask."""
    return zero_outside(token_level_rewards, response_mask).double().sum(-1)


class Groups:
    """Group sums, means and deviations of row values, returned per row.

    Everything is float64: with `std + 1e-6` as a divisor, float32 noise in a group of equal rewards would become a
    gradient.

    Args:
        group_ids: B hashables; equal ones form a group.
        device: where the row values are.
    """

    def __init__(self, group_ids: Sequence[Hashable], device: torch.device) -> None:
        numbers: dict[Hashable, int] = {}
        # A tensor hashes by identity: taken as it is, every row would be a group of its own.
        plain = (group_id.item() if isinstance(group_id, Tensor) else group_id for group_id in group_ids)
        index = [numbers.setdefault(group_id, len(numbers)) for group_id in plain]
        self.index = torch.tensor(index, dtype=torch.long, device=device)
        self.count = len(numbers)
        self.sizes = self.sum(torch.ones(len(index), dtype=torch.double, device=device))
        """Rows in the group of each row, `(B,)`."""

    def sum(self, values: Tensor) -> Tensor:
        """Group sum, per row."""
        totals = torch.zeros(self.count, dtype=values.dtype, device=values.device).index_add(0, self.index, values)
        return totals[self.index]

    def mean(self, values: Tensor) -> Tensor:
        """Group mean, per row."""
        return self.sum(values) / self.sizes

    def centred(self, values: Tensor) -> Tensor:
        """Value minus group mean, per row; exactly 0 where all values of the group are equal."""
        return torch.where(self.constant(values), torch.zeros_like(values), values - self.mean(values))

    def std(self, values: Tensor) -> Tensor:
        """Unbiased standard deviation of the group, per row; 0 for a group of one."""
        return (self.sum(self.centred(values).square()) / (self.sizes - 1).clamp(min=1)).sqrt()

    def constant(self, values: Tensor) -> Tensor:
        """True where all values of a row's group are equal."""
        return self._extreme(values, "amax") == self._extreme(values, "amin")

    def _extreme(self, values: Tensor, which: str) -> Tensor:
        empty = torch.zeros(self.count, dtype=values.dtype, device=values.device)
        return empty.scatter_reduce(0, self.index, values, which, include_self=False)[self.index]


def zero_variance_rows(token_level_rewards: Tensor, response_mask: Tensor, group_ids: Sequence[Hashable]) -> Tensor:
    """`(B,)` bool: rows of groups whose rewards are all equal, groups of one included. They carry no group gradient."""
    rewards = outcome(token_level_rewards, response_mask)
    return Groups(group_ids, rewards.device).constant(rewards)


def group_metrics(
    token_level_rewards: Tensor, response_mask: Tensor, group_ids: Sequence[Hashable]
) -> dict[str, float]:
    """Groups without a gradient: `rollout/zero_variance_groups`, and among them `rollout/groups_of_one`."""
    groups = Groups(group_ids, token_level_rewards.device)
    constant = zero_variance_rows(token_level_rewards, response_mask, group_ids)
    return {
        "rollout/zero_variance_groups": float((constant / groups.sizes).sum().round()),
        "rollout/groups_of_one": float((groups.sizes == 1).sum()),
    }
