"""Learning-rate schedules, decay of matrices only, and steps that are skipped."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from agentrl.config.actor import OptimConfig
from agentrl.workers.optim import AdamW, learning_rate


def rates(config: OptimConfig, total: int) -> list[float]:
    return [learning_rate(config, step, total) for step in range(total)]


def test_constant_after_warm_up() -> None:
    config = OptimConfig(lr=2.0, lr_warmup_steps=4)
    assert rates(config, 6) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_linear_decay_ends_at_the_floor_when_all_updates_are_done() -> None:
    config = OptimConfig(lr=1.0, warmup_style="linear", min_lr_ratio=0.2)
    assert rates(config, 4) == pytest.approx([1.0, 0.8, 0.6, 0.4])
    assert learning_rate(config, 4, 4) == pytest.approx(0.2)
    assert learning_rate(config, 400, 4) == pytest.approx(0.2)


def test_cosine_and_warm_up_ratio() -> None:
    config = OptimConfig(lr=1.0, warmup_style="cosine", lr_warmup_steps_ratio=0.5)
    assert rates(config, 4) == pytest.approx([0.5, 1.0, 1.0, 0.5 * (1 + math.cos(math.pi / 2))])


def test_own_length_of_the_schedule_wins() -> None:
    config = OptimConfig(lr=1.0, warmup_style="linear", total_training_steps=10)
    assert learning_rate(config, 5, 1000) == pytest.approx(0.5)


def make(**fields: float) -> tuple[nn.Linear, AdamW]:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    return layer, AdamW(layer.named_parameters(), OptimConfig(lr=0.1, **fields), grad_clip=1.0)


def test_only_matrices_decay() -> None:
    layer, optimizer = make(weight_decay=0.5)
    before = layer.weight.detach().clone(), layer.bias.detach().clone()
    layer.weight.grad, layer.bias.grad = torch.zeros(2, 3), torch.zeros(2)
    optimizer.step(0.1)
    torch.testing.assert_close(layer.weight, before[0] * (1 - 0.1 * 0.5))
    assert torch.equal(layer.bias, before[1])


def test_equals_torch_with_clipping() -> None:
    layer, optimizer = make(weight_decay=0.0)
    torch.manual_seed(0)
    twin = nn.Linear(3, 2)
    reference = torch.optim.AdamW(twin.parameters(), lr=0.1, weight_decay=0.0)
    for step in range(3):
        inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(step)) * 10
        for module in (layer, twin):
            module(inputs).pow(2).sum().backward()
        expected = torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        reference.step()
        reference.zero_grad()
        norm, taken = optimizer.step(0.1)
        assert taken
        assert norm == pytest.approx(float(expected), rel=1e-5)
        assert norm > 1.0
    torch.testing.assert_close(layer.weight, twin.weight)
    torch.testing.assert_close(layer.bias, twin.bias)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(poison: float) -> None:
    layer, optimizer = make()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    layer.weight.grad, layer.bias.grad = torch.ones(2, 3), torch.full((2,), poison)
    norm, taken = optimizer.step(0.1)
    assert not taken
    assert not math.isfinite(norm)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert all(float(value.abs().sum()) == 0.0 for value in optimizer.state_tensors().values())
    assert layer.weight.grad is None
