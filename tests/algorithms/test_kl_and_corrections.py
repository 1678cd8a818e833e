"""KL estimators and controllers, rollout correction, mismatch metrics, entropy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl.algorithms import (
    AdaptiveKLController,
    FixedKLController,
    finite_rows,
    kl_in_reward,
    kl_penalty,
    masked_mean,
    mismatch_metrics,
    rollout_correction,
)

KINDS = ["k1", "kl", "abs", "k2", "mse", "k3", "low_var_kl"]


@pytest.mark.parametrize("kind", KINDS + [kind + "+" for kind in KINDS])
@pytest.mark.parametrize("gap", [0.0, 30.0, -30.0, 500.0, -500.0])
def test_kl_is_finite_with_finite_gradient(kind: str, gap: float) -> None:
    log_probs = torch.full((2, 2), -600.0, requires_grad=True)
    value = kl_penalty(log_probs, log_probs.detach() - gap, kind)
    (gradient,) = torch.autograd.grad(value.sum(), log_probs)
    assert torch.isfinite(value).all()
    assert torch.isfinite(gradient).all()


@given(st.floats(-15, 15))
def test_k3_is_never_negative(difference: float) -> None:
    value = kl_penalty(torch.tensor([difference], dtype=torch.double), torch.zeros(1, dtype=torch.double), "k3")
    assert float(value) == pytest.approx(math.exp(-difference) - 1 + difference, abs=1e-9, rel=1e-9)
    assert float(value) >= 0


def test_unknown_kl_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'low_var_kl'"):
        kl_penalty(torch.zeros(1), torch.zeros(1), "low_var")


def test_kl_estimators_average_to_the_true_kl() -> None:
    """Over samples of the policy, k1 and k3 both tend to the exact KL of two categorical distributions."""
    generator = torch.Generator().manual_seed(0)
    policy, reference = torch.randn(2, 5, generator=generator, dtype=torch.double).log_softmax(-1)
    exact = float((policy.exp() * (policy - reference)).sum())
    for kind in ("k1", "k3"):
        expectation = float((policy.exp() * kl_penalty(policy, reference, kind)).sum())
        assert expectation == pytest.approx(exact)


def test_adaptive_controller_is_bounded_and_resumes() -> None:
    controller = AdaptiveKLController(1.0, target_kl=0.1, horizon=100)
    controller.update(100.0, 100)
    assert controller.value == pytest.approx(1.2)
    controller.update(0.0, 100)
    assert controller.value == pytest.approx(1.2 * 0.8)
    resumed = AdaptiveKLController(1.0, target_kl=0.1, horizon=100)
    resumed.load_state_dict(controller.state_dict())
    assert resumed.value == controller.value
    with pytest.raises(ValueError, match="positive"):
        AdaptiveKLController(1.0, target_kl=0.0, horizon=100)


def test_fixed_controller_keeps_the_configured_value_on_resume() -> None:
    controller = FixedKLController(0.5)
    controller.load_state_dict(FixedKLController(0.1).state_dict())
    assert controller.value == 0.5


def test_kl_in_reward() -> None:
    scores = torch.tensor([[0.0, 1.0, math.nan], [0.0, 0.0, 0.0]])
    old = torch.tensor([[-1.0, -2.0, math.nan], [-1.0, -1.0, -1.0]])
    ref = torch.tensor([[-1.5, -1.0, -3.0], [-1.0, -1.0, -1.0]])
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    rewards, current = kl_in_reward(scores, old, ref, mask, kl_coef=0.1, kind="kl")
    assert rewards.tolist() == [pytest.approx([-0.05, 1.1, 0.0]), [0.0, 0.0, 0.0]]
    assert current == pytest.approx(-0.25)


def logs(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)


def test_sequence_weights_are_likelihood_ratios() -> None:
    old, rollout = logs([-1.0, -1.0, 9.0], [-1.0, -1.0, -1.0]), logs([-1.1, -1.2, 0.0], [-0.5, -0.5, -0.5])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    weights, kept, metrics = rollout_correction(old, rollout, mask, is_level="sequence", is_threshold=1.3)
    expected = [[1.3, 1.3, 0], [math.exp(-1.5)] * 3]
    torch.testing.assert_close(weights, torch.tensor(expected))
    assert torch.equal(kept, mask)
    assert kept.dtype == mask.dtype
    assert metrics["rollout_corr/is_truncated_fraction"] == pytest.approx(2 / 5)
    assert metrics["rollout_corr/is_min"] == pytest.approx(math.exp(-1.5))


def test_rejection_of_rows_and_tokens() -> None:
    old, rollout = logs([-1.0, -1.0], [-1.0, -1.0], [-1.0, -1.0]), logs([-1.0, -2.0], [-3.0, -3.0], [-1.0, -1.0])
    mask = torch.tensor([[True, True], [True, True], [False, False]])
    _, rows, metrics = rollout_correction(old, rollout, mask, is_level=None, rs=(0.5, 2.0))
    assert rows.tolist() == [[True, True], [False, False], [False, False]]
    assert metrics["rollout_corr/rs_seq_masked_fraction"] == 0.5
    weights, tokens, metrics = rollout_correction(old, rollout, mask, is_level=None, rs=(0.5, 2.0), rs_level="token")
    assert tokens.tolist() == [[True, False], [False, False], [False, False]]
    assert metrics["rollout_corr/rs_masked_fraction"] == 0.75
    assert weights.tolist() == [[1, 1], [1, 1], [0, 0]]


@pytest.mark.parametrize("is_level", ["token", "sequence", None])
def test_correction_survives_extremes_and_empty_masks(is_level: str | None) -> None:
    old, rollout = torch.full((2, 400), -900.0), torch.zeros(2, 400)
    for left, right in ((old, rollout), (rollout, old)):
        weights, _, metrics = rollout_correction(left, right, torch.ones(2, 400), is_level=is_level, rs=(0.1, 10))
        assert torch.isfinite(weights).all()
        assert float(weights.max()) <= 2.0
        assert all(map(math.isfinite, metrics.values()))
    weights, kept, metrics = rollout_correction(old * math.nan, rollout, torch.zeros(2, 400), is_level=is_level)
    assert not weights.any()
    assert not kept.any()
    assert all(map(math.isfinite, metrics.values()))


def test_equal_log_probs_need_no_correction() -> None:
    log_probs = -torch.rand(3, 4)
    for level in ("token", "sequence"):
        weights, kept, metrics = rollout_correction(
            log_probs, log_probs, torch.ones(3, 4), is_level=level, rs=(0.99, 1.01)
        )
        assert torch.equal(weights, torch.ones(3, 4))
        assert kept.all()
        assert metrics["rollout_corr/is_eff_sample_size"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"is_level": "sequnce"}, "Did you mean 'sequence'"),
        ({"rs_level": "row"}, "unknown level 'row'"),
        ({"is_threshold": 0.0}, "must be positive"),
        ({"rs": (2.0, 0.5)}, "low <= high"),
    ],
)
def test_bad_correction_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rollout_correction(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), **options)  # type: ignore[arg-type]


def test_mismatch_metrics() -> None:
    probs_old, probs_rollout = torch.tensor([[0.5, 0.25, 0.9]]), torch.tensor([[0.4, 0.45, 0.1]])
    mask = torch.tensor([[1, 1, 0]])
    metrics = mismatch_metrics(probs_old.log(), probs_rollout.log(), mask)
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(0.15)
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(0.2)
    assert metrics["training/rollout_probs_diff_std"] == pytest.approx(0.05)
    assert metrics["training/rollout_actor_probs_pearson_corr"] == pytest.approx(-1.0)
    ratios = [0.5 / 0.4, 0.25 / 0.45]
    assert metrics["rollout_corr/kl"] == pytest.approx(-sum(map(math.log, ratios)) / 2)
    assert metrics["rollout_corr/k3_kl"] == pytest.approx(sum(r - 1 - math.log(r) for r in ratios) / 2)
    assert metrics["rollout_corr/chi2_token"] == pytest.approx(sum(r * r - 1 for r in ratios) / 2)
    assert metrics["rollout_corr/training_ppl"] == pytest.approx((0.5 * 0.25) ** -0.5)
    assert metrics["rollout_corr/rollout_ppl"] == pytest.approx((0.4 * 0.45) ** -0.5)


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_mismatch_of_equal_log_probs_is_zero(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_probs = -torch.rand(3, 5, generator=generator)
    mask = torch.rand(3, 5, generator=generator) < 0.5
    metrics = mismatch_metrics(log_probs, torch.where(mask, log_probs, math.nan), mask)
    assert metrics.pop("training/rollout_actor_probs_pearson_corr") == 1.0
    perplexities = {name: metrics.pop(name) for name in ("rollout_corr/training_ppl", "rollout_corr/rollout_ppl")}
    assert len(set(perplexities.values())) == 1
    assert set(metrics.values()) <= {0.0, -0.0}


def test_correlation_without_variance_is_zero() -> None:
    metrics = mismatch_metrics(logs([-1.0, -1.0]), logs([-1.0, -2.0]), torch.ones(1, 2))
    assert metrics["training/rollout_actor_probs_pearson_corr"] == 0.0


def test_rows_that_are_finite_wherever_the_mask_is_set() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 1, 0]])
    first = logs([-1.0, -1.0, math.nan], [-1.0, math.nan, 0.0], [-1.0, -1.0, 0.0])
    second = logs([-1.0, -1.0, 0.0], [-1.0, -1.0, 0.0], [-math.inf, -1.0, 0.0])
    assert finite_rows(mask, first, second).tolist() == [[True], [False], [False]]


def test_masked_mean_along_a_dimension() -> None:
    values, mask = torch.tensor([[1.0, 3.0], [math.nan, 5.0]]), torch.tensor([[1, 1], [0, 0]])
    assert masked_mean(values, mask, dim=-1).tolist() == [2.0, 0.0]
    assert float(masked_mean(values, mask)) == 2.0
