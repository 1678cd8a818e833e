"""Contract tests for advantage estimators and policy losses of your own; agentrl's own pass them.

::

    def test_my_loss():
        check_policy_loss("my_losses.py:ratio")

`ESTIMATOR_CONTRACTS` and `LOSS_CONTRACTS` list the clauses; `agentrl plugins check NAME --kind policy_losses` (or
`advantages`) runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from agentrl.algorithms.advantages import AdvantageEstimator
from agentrl.algorithms.aggregation import AGGREGATION_MODES
from agentrl.algorithms.policy_losses import PolicyLoss
from agentrl.plugins.own_algorithms import find_estimator, find_policy_loss
from agentrl.testing.contracts import Contract

MASK = torch.tensor([[1, 1, 0, 1, 0], [1, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
"""Two groups, observations and padding; the last row sampled nothing."""
GROUPS = ["a", "a", "b", "b", "b"]
SCALE = 8.0


@dataclass(frozen=True, slots=True)
class AlgorithmCase:
    """A function by name, and its keywords."""

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def estimator(self) -> AdvantageEstimator:
        """The name as an advantage estimator."""
        return find_estimator(self.name, self.kwargs)

    @property
    def loss(self) -> PolicyLoss:
        """The name as a policy loss."""
        return find_policy_loss(self.name, self.kwargs)

    def estimate(self, rows: list[int], groups: list[str] | None = None) -> tuple[Tensor, Tensor]:
        """Advantages and returns of these rows."""
        rewards = torch.zeros(MASK.shape).scatter(1, torch.tensor([[3], [4], [2], [4], [0]]), SCORES[:, None]) * MASK
        return self.estimator(
            rewards[rows],
            MASK[rows],
            values=VALUES[rows],
            group_ids=[GROUPS[row] for row in rows] if groups is None else groups,
            baselines=torch.full((len(rows),), 0.5),
            outcomes=SCORES[rows],
        )

    def share(self, rows: list[int], mode: str, log_probs: Tensor) -> Tensor:
        """These rows' part of the loss of the whole mini-batch."""
        value, _ = self.loss(
            log_probs[rows],
            OLD[rows],
            ADVANTAGES[rows],
            MASK[rows].bool(),
            loss_agg_mode=mode,
            scale=SCALE,
            num_tokens=float(MASK.sum()),
            num_sequences=float(MASK.any(-1).sum()),
        )
        return value


_DRAW = torch.Generator().manual_seed(0)
SCORES = torch.tensor([1.0, 0.0, 0.25, 1.0, 0.5])
VALUES = torch.rand(MASK.shape, generator=_DRAW) * MASK
OLD = (-1.0 - torch.rand(MASK.shape, generator=_DRAW)) * MASK
NEW = OLD + torch.randn(MASK.shape, generator=_DRAW) * 0.3 * MASK
ADVANTAGES = torch.randn(MASK.shape[0], 1, generator=_DRAW) * MASK
ROWS = list(range(len(MASK)))


def check_advantage_estimator(name: str, **kwargs: Any) -> None:
    """Check that an advantage estimator keeps the contract.

    Args:
        name: as `algorithm.adv_estimator` takes it.
        **kwargs: `algorithm.adv_estimator_kwargs`.

    Raises:
        PluginError: it is not found, or cannot be bound.
        AssertionError: a clause is broken; the message says which.
    """
    for _, check in _OF_ESTIMATORS:
        check(AlgorithmCase(name, kwargs))


def check_policy_loss(name: str, **kwargs: Any) -> None:
    """Check that a policy loss keeps the contract.

    Args:
        name: as `actor_rollout_ref.actor.policy_loss` takes it.
        **kwargs: `actor.policy_loss_kwargs`.

    Raises:
        PluginError: it is not found, or cannot be bound.
        AssertionError: a clause is broken; the message says which.
    """
    for _, check in _OF_LOSSES:
        check(AlgorithmCase(name, kwargs))


def _shapes(case: AlgorithmCase) -> None:
    for each in case.estimate(ROWS):
        assert each.shape == MASK.shape, f"got {tuple(each.shape)}, wanted {tuple(MASK.shape)}"
        assert each.is_floating_point()
        assert bool(each.isfinite().all()), "advantages and returns must be finite"
        assert not each[MASK == 0].any(), "advantages and returns must be 0 where nothing was sampled"


def _order(case: AlgorithmCase) -> None:
    mixed = [3, 0, 4, 1, 2]
    for one, other in zip(case.estimate(ROWS), case.estimate(mixed), strict=True):
        torch.testing.assert_close(other, one[mixed], msg="the order of the rows must not matter")


def _lonely(case: AlgorithmCase) -> None:
    for each in case.estimate([0, 2], ["a", "b"]):
        assert bool(each.isfinite().all()), "a group of one must have finite advantages"


def _same_input(case: AlgorithmCase) -> None:
    before = [tensor.clone() for tensor in (MASK, SCORES, VALUES)]
    case.estimate(ROWS)
    assert all(torch.equal(*pair) for pair in zip(before, (MASK, SCORES, VALUES), strict=True)), "inputs were changed"


def _one_number(case: AlgorithmCase) -> None:
    value, metrics = case.loss(NEW.clone().requires_grad_(), OLD, ADVANTAGES, MASK.bool())
    assert value.ndim == 0, f"got {tuple(value.shape)}, wanted one number"
    assert bool(value.isfinite())
    assert all(isinstance(each, float) for each in metrics.values())


def _gradient(case: AlgorithmCase) -> None:
    log_probs = NEW.clone().requires_grad_()
    torch.autograd.backward(case.share(ROWS, "token-mean", log_probs))
    assert log_probs.grad is not None, "the loss has no gradient with respect to log_probs"
    assert bool(log_probs.grad.isfinite().all()), "the gradient must be finite"
    assert not log_probs.grad[MASK == 0].any(), "tokens outside the mask must have no gradient"
    assert log_probs.grad.any(), "the gradient is 0 everywhere"


def _cut(case: AlgorithmCase) -> None:
    """However a mini-batch is cut into micro-batches, its loss is the same."""
    for mode in AGGREGATION_MODES:
        whole = case.share(ROWS, mode, NEW)
        parts = sum(case.share(rows, mode, NEW) for rows in ([0, 3], [1], [2, 4]))
        torch.testing.assert_close(
            parts, whole, msg=f"{mode}: the loss must not depend on how the mini-batch is cut into micro-batches"
        )


def _nothing(case: AlgorithmCase) -> None:
    value, _ = case.loss(NEW.clone().requires_grad_(), OLD, ADVANTAGES, torch.zeros_like(MASK).bool())
    assert not value.detach().any(), f"a batch without a sampled token must have loss 0, got {value.item()}"


Clause = tuple[str, Callable[[AlgorithmCase], None]]
_OF_ESTIMATORS: list[Clause] = [
    ("it returns finite advantages and returns, 0 where nothing was sampled", _shapes),
    ("the order of the rows does not matter", _order),
    ("groups of one are finite", _lonely),
    ("its inputs stay as they are", _same_input),
]
_OF_LOSSES: list[Clause] = [
    ("it returns one finite number, or token losses, and numbers as metrics", _one_number),
    ("log_probs of sampled tokens have a finite gradient", _gradient),
    ("the loss does not depend on how the mini-batch is cut into micro-batches", _cut),
    ("a batch without a sampled token has loss 0", _nothing),
]


def _contract(demand: str, check: Callable[[AlgorithmCase], None]) -> Contract[AlgorithmCase]:
    async def run(case: AlgorithmCase) -> None:
        check(case)

    return Contract(demand, run)


ESTIMATOR_CONTRACTS = [_contract(*clause) for clause in _OF_ESTIMATORS]
LOSS_CONTRACTS = [_contract(*clause) for clause in _OF_LOSSES]
