"""Every number that the reference gives for advantages, losses, aggregation, KL and corrections."""

from __future__ import annotations

import math

import pytest
import torch

from agentrl.algorithms import (
    ADVANTAGE_ESTIMATORS,
    POLICY_LOSSES,
    AdaptiveKLController,
    FixedKLController,
    aggregate_loss,
    kl_penalty,
    rollout_correction,
    value_loss,
)

OLD = torch.tensor([[-1.0, -2.0, -0.5, -1.5], [-0.7, -0.3, -2.2, -1.0]])
NEW = torch.tensor([[-0.8, -2.5, -0.5, -0.5], [-0.9, -0.3, -1.2, -1.0]])
ADVANTAGES = torch.tensor([[1.0] * 4, [-0.5] * 4])
MASK = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0]])
LOSSES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
LOSS_MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])


def close(actual: torch.Tensor, expected: object, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), atol=tolerance, rtol=0)


def test_the_registries_hold_every_documented_name() -> None:
    assert set(ADVANTAGE_ESTIMATORS) == {
        "gae",
        "grpo",
        "rloo",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
        "remax",
        "opo",
        "gpg",
        "grpo_passk",
    }
    assert set(POLICY_LOSSES) == {"vanilla", "gspo", "cispo", "gpg", "sapo", "geo_mean", "clip_cov", "kl_cov"}


class TestAdvantages:
    @pytest.mark.parametrize("elsewhere", [0.0, 123.0, math.nan])
    def test_gae_skips_observations(self, elsewhere: float) -> None:
        rewards = torch.tensor([[0, 0, 0.1, 0.1, 0.1, 0, 0, 0.1, 1, 0, 0]])
        mask = torch.tensor([[0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0]])
        values = torch.full((1, 11), elsewhere)
        values[mask.bool()] = torch.tensor([4.0, 5, 6, 7, 9])
        advantages, returns = ADVANTAGE_ESTIMATORS["gae"](rewards, mask, values=values, gamma=1.0, lam=1.0)
        close(returns[mask.bool()], [1.4, 1.3, 1.2, 1.1, 1.0])
        close(advantages[mask.bool()], [1.15403, 0.62510, 0.09617, -0.43276, -1.44254])
        assert not advantages[~mask.bool()].any()

    @pytest.mark.parametrize(("name", "size"), [("grpo", 0.86602), ("rloo", 0.66667)])
    def test_group_of_four(self, name: str, size: float) -> None:
        rewards = torch.tensor([[0, 1.0], [0, 0], [0, 0], [0, 1.0]])
        advantages, _ = ADVANTAGE_ESTIMATORS[name](rewards, torch.ones(4, 2), group_ids=["a"] * 4)
        close(advantages, [[size] * 2, [-size] * 2, [-size] * 2, [size] * 2])

    def test_reinforce_plus_plus_does_not_reset_at_observations(self) -> None:
        rewards = torch.tensor([[0, 0, 0, 0, 1.0, 0]])
        mask = torch.tensor([[1, 1, 0, 1, 1, 0]])
        _, returns = ADVANTAGE_ESTIMATORS["reinforce_plus_plus"](rewards, mask, gamma=1.0)
        close(returns, [[1, 1, 0, 1, 1, 0]])


class TestPolicyLosses:
    def test_vanilla(self) -> None:
        loss, metrics = POLICY_LOSSES["vanilla"](NEW, OLD, ADVANTAGES, MASK)
        close(loss, -0.123004, 1e-6)
        assert metrics["pg_clipfrac"] == pytest.approx(1 / 3)
        assert metrics["ppo_kl"] == pytest.approx(-0.25)

    def test_dual_clip(self) -> None:
        one = torch.ones(1, 1)
        loss, metrics = POLICY_LOSSES["vanilla"](-one, -3 * one, -one, one)
        close(loss, 3.0)
        assert metrics["pg_clipfrac_lower"] == 1.0

    def test_cispo(self) -> None:
        loss, _ = POLICY_LOSSES["cispo"](NEW, OLD, ADVANTAGES, MASK, loss_agg_mode="token-mean")
        close(loss, 0.386929, 1e-6)


@pytest.mark.parametrize(
    ("mode", "scale", "expected"),
    [
        ("token-mean", None, 3.6),
        ("seq-mean-token-sum", None, 9.0),
        ("seq-mean-token-mean", None, 3.25),
        ("seq-mean-token-sum-norm", 3, 3.0),
    ],
)
def test_aggregation(mode: str, scale: float | None, expected: float) -> None:
    close(aggregate_loss(LOSSES, LOSS_MASK, mode, scale=scale), expected)


def test_two_sequences_give_a_quarter_however_they_are_split() -> None:
    losses = torch.tensor([[1.0, 9, 9], [0, 0, 0]])
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    close(aggregate_loss(losses, mask, "token-mean"), 0.25)
    shares = [aggregate_loss(losses[i : i + 1], mask[i : i + 1], "token-mean", num_tokens=4) for i in range(2)]
    close(sum(shares, torch.zeros(())), 0.25)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["k1", "kl"], [0.5, -1, 0]),
        (["k2", "mse"], [0.125, 0.5, 0]),
        (["k3", "low_var_kl"], [0.106531, 0.718282, 0]),
        (["abs"], [0.5, 1, 0]),
    ],
)
def test_kl(kinds: list[str], expected: list[float]) -> None:
    log_probs, ref = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True), torch.tensor([-1.5, -1.0, -0.5])
    for kind in kinds:
        close(kl_penalty(log_probs, ref, kind), expected, 1e-6)
        straight_through = kl_penalty(log_probs, ref, kind + "+")
        close(straight_through, expected, 1e-6)
        (gradient,) = torch.autograd.grad(straight_through.sum(), log_probs)
        close(gradient, (log_probs - ref).detach(), 1e-6)


def test_kl_controllers() -> None:
    adaptive = AdaptiveKLController(0.002, target_kl=0.05, horizon=5000)
    adaptive.update(0.1, 100)
    assert adaptive.value == pytest.approx(0.002008)
    fixed = FixedKLController(0.002)
    fixed.update(0.1, 100)
    assert fixed.value == 0.002


@pytest.mark.parametrize("shape", [(3,), (1, 3)])
def test_value_loss(shape: tuple[int, ...]) -> None:
    vpreds, returns = torch.tensor([1.0, 2, 3]).view(shape), torch.tensor([0.0, 2.5, 5]).view(shape)
    old = torch.tensor([0.5, 2, 2]).view(shape)
    loss, clip_fraction = value_loss(vpreds, returns, old, torch.ones(shape), cliprange=0.2)
    close(loss, 1.515)
    assert clip_fraction == pytest.approx(1 / 3)


def test_truncated_importance_sampling() -> None:
    old = torch.full((2, 5), -2.0)
    rollout = torch.tensor([[-1.0] * 5, [-2.5] * 5])
    weights, mask, _ = rollout_correction(old, rollout, torch.ones(2, 5), is_level="token", is_threshold=2.0, rs=None)
    close(weights, [[0.3679] * 5, [1.6487] * 5], 1e-4)
    assert mask.all()
