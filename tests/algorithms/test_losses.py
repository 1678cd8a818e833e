"""Policy losses, aggregation and the value loss: worked examples and the properties that every one must have."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl.algorithms import AGGREGATION_MODES, POLICY_LOSSES, aggregate_loss, value_loss

# clip_cov and kl_cov compare tokens with each other within a call, so a cut changes which tokens they pick.
CUTTABLE = [name for name in POLICY_LOSSES if name not in ("clip_cov", "kl_cov")]
seeds = st.integers(0, 10_000)


def random_batch(seed: int, rows: int = 6, tokens: int = 7) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, tokens, generator=generator, dtype=torch.double) * 3
    new = old + torch.randn(rows, tokens, generator=generator, dtype=torch.double) * 0.4
    advantages = torch.randn(rows, 1, generator=generator, dtype=torch.double).expand(rows, tokens)
    mask = torch.rand(rows, tokens, generator=generator) < 0.6
    return new, old, advantages, mask


def gradient_of(loss: Tensor, leaf: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient


@pytest.mark.parametrize("mode", AGGREGATION_MODES)
@given(seed=seeds, cuts=st.sets(st.integers(1, 5)))
@settings(max_examples=25, deadline=None)
def test_aggregation_is_the_same_under_any_cut(mode: str, seed: int, cuts: set[int]) -> None:
    losses, _, _, mask = random_batch(seed)
    counts = {"num_tokens": mask.sum(), "num_sequences": mask.any(-1).sum()}
    whole = aggregate_loss(losses, mask, mode, scale=5)
    bounds = [0, *sorted(cuts), 6]
    total = torch.zeros((), dtype=torch.double)
    for start, stop in itertools.pairwise(bounds):
        # A micro-batch is padded to its own longest row, so its width differs too.
        width = max(int(mask[start:stop].nonzero()[:, 1].max()) + 1 if mask[start:stop].any() else 1, 1)
        part = losses[start:stop, :width], mask[start:stop, :width]
        total = total + aggregate_loss(*part, mode, scale=5, **counts)  # type: ignore[arg-type]
    torch.testing.assert_close(total, whole)


@pytest.mark.parametrize("name", CUTTABLE)
@pytest.mark.parametrize("mode", AGGREGATION_MODES)
@given(seed=seeds, cut=st.integers(1, 5))
@settings(max_examples=10, deadline=None)
def test_loss_gradient_and_metrics_add_up_over_micro_batches(name: str, mode: str, seed: int, cut: int) -> None:
    new, old, advantages, mask = random_batch(seed)
    new.requires_grad_()
    options = {"loss_agg_mode": mode, "scale": 7.0, "num_tokens": mask.sum(), "num_sequences": mask.any(-1).sum()}
    whole, metrics = POLICY_LOSSES[name](new, old, advantages, mask, loss_agg_mode=mode, scale=7.0)
    parts = [
        POLICY_LOSSES[name](new[rows], old[rows], advantages[rows], mask[rows], **options)  # type: ignore[arg-type]
        for rows in (slice(cut), slice(cut, None))
    ]
    total = parts[0][0] + parts[1][0]
    torch.testing.assert_close(total, whole)
    torch.testing.assert_close(gradient_of(total, new), gradient_of(whole, new))
    for key, value in metrics.items():
        assert parts[0][1][key] + parts[1][1][key] == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("name", POLICY_LOSSES)
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_what_stands_at_masked_places_does_not_matter(name: str, seed: int) -> None:
    new, old, advantages, mask = random_batch(seed)
    spoiled = [torch.where(mask, values, math.nan) for values in (new, old, advantages)]
    results = []
    for log_probs, *rest in ((new, old, advantages), spoiled):
        leaf = log_probs.clone().requires_grad_()
        torch.manual_seed(0)
        loss, metrics = POLICY_LOSSES[name](leaf, *rest, mask)
        results.append((loss.detach(), gradient_of(loss, leaf), metrics))
    torch.testing.assert_close(results[0], results[1])
    assert not results[1][1][~mask].any()


@pytest.mark.parametrize("name", POLICY_LOSSES)
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.long, torch.float32])
def test_a_wholly_masked_batch_gives_zero_with_zero_gradient(name: str, mask_dtype: torch.dtype) -> None:
    new, old, advantages, mask = random_batch(3)
    new.requires_grad_()
    loss, metrics = POLICY_LOSSES[name](new, old, advantages, torch.zeros_like(mask).to(mask_dtype))
    assert loss.item() == 0.0
    assert not gradient_of(loss, new).any()
    assert set(metrics.values()) <= {0.0, -0.0}


@pytest.mark.parametrize("name", POLICY_LOSSES)
@pytest.mark.parametrize("gap", [50.0, -50.0, 1e4, -1e4])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_gradients_stay_finite_at_extreme_ratios(name: str, gap: float, advantage: float) -> None:
    old = torch.full((2, 3), -1e4)
    new = (old + gap).requires_grad_()
    loss, metrics = POLICY_LOSSES[name](new, old, torch.full((2, 3), advantage), torch.ones(2, 3))
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient_of(loss, new)).all()
    assert all(map(math.isfinite, metrics.values()))


@pytest.mark.parametrize("name", ["vanilla", "gspo", "cispo", "gpg", "sapo", "geo_mean", "clip_cov"])
@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_on_policy_gradient_is_the_policy_gradient(name: str, seed: int) -> None:
    _, old, advantages, mask = random_batch(seed)
    new = old.clone().requires_grad_()
    mode = "seq-mean-token-mean"
    options = {"clip_cov_lb": 1e9, "clip_cov_ub": 2e9} if name == "clip_cov" else {}
    loss, metrics = POLICY_LOSSES[name](new, old, advantages, mask, loss_agg_mode=mode, **options)
    expected = gradient_of(aggregate_loss(-advantages * new, mask, mode), new)
    torch.testing.assert_close(gradient_of(loss, new), expected)
    assert metrics["ppo_kl"] == 0.0


def test_group_normalised_rows_of_one_give_no_gradient() -> None:
    new, old, _, mask = random_batch(5)
    new.requires_grad_()
    loss, _ = POLICY_LOSSES["vanilla"](new, old, torch.zeros_like(new), mask)
    assert not gradient_of(loss, new).any()


@given(seed=seeds, low=st.floats(0, 0.9), high=st.floats(0, 3), dual=st.floats(1.1, 5))
@settings(max_examples=40, deadline=None)
def test_vanilla_equals_the_formula_token_by_token(seed: int, low: float, high: float, dual: float) -> None:
    new, old, advantages, mask = random_batch(seed)
    total, clipped, lower = 0.0, 0, 0
    for row, t in mask.nonzero().tolist():
        a, rho = float(advantages[row, t]), math.exp(float(new[row, t] - old[row, t]))
        plain, bounded = -a * rho, -a * min(max(rho, 1 - low), 1 + high)
        worst = max(plain, bounded)
        clipped += bounded > plain
        lower += a < 0 and worst > -a * dual
        total += min(worst, -a * dual) if a < 0 else worst
    count = max(int(mask.sum()), 1)
    loss, metrics = POLICY_LOSSES["vanilla"](
        new, old, advantages, mask, clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=dual
    )
    assert loss.item() == pytest.approx(total / count, abs=1e-9)
    assert metrics["pg_clipfrac"] == pytest.approx(clipped / count, abs=1e-6)
    assert metrics["pg_clipfrac_lower"] == pytest.approx(lower / count, abs=1e-6)


def sequence(log_ratios: list[float], advantage: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    new = torch.tensor([log_ratios], dtype=torch.double, requires_grad=True)
    return new, torch.zeros_like(new), torch.full_like(new, advantage), torch.ones_like(new)


def test_gspo_clips_the_sequence_ratio() -> None:
    new, *rest = sequence([0.1, 0.5], 1.0)
    loss, metrics = POLICY_LOSSES["gspo"](new, *rest, clip_ratio_low=0.2, clip_ratio_high=0.2)
    assert loss.item() == pytest.approx(-1.2)
    assert metrics["pg_clipfrac"] == 1.0
    new, *rest = sequence([0.1, 0.5], -2.0)
    loss, _ = POLICY_LOSSES["gspo"](new, *rest)
    assert loss.item() == pytest.approx(2 * math.exp(0.3))
    torch.testing.assert_close(gradient_of(loss, new), torch.full_like(new, math.exp(0.3)))


def test_sapo() -> None:
    for advantage, tau in ((2.0, 1.0), (-2.0, 1.05)):
        new, *rest = sequence([0.3], advantage)
        gate = 4 / tau / (1 + math.exp(-tau * (math.exp(0.3) - 1)))
        assert POLICY_LOSSES["sapo"](new, *rest)[0].item() == pytest.approx(-advantage * gate)


def test_geo_mean_clips_pessimistically() -> None:
    new, *rest = sequence([0.1, 0.5, -0.9], 1.0)  # clipped to 0.1, 0.2, and -0.9 stays: clipping it would help
    loss, _ = POLICY_LOSSES["geo_mean"](new, *rest)
    assert loss.item() == pytest.approx(-math.exp((0.1 + 0.2 - 0.9) / 3))
    new, *rest = sequence([0.1, 0.5, -0.9], -1.0)  # 0.5 stays, -0.9 becomes -0.2
    assert POLICY_LOSSES["geo_mean"](new, *rest)[0].item() == pytest.approx(math.exp((0.1 + 0.5 - 0.2) / 3))


def covariance_batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four tokens on policy; covariances 2.25, -0.75, -0.75, 2.25 with means A = 0 and log pi = -1.5."""
    new = torch.tensor([[0.0, -1.0, -2.0, -3.0]], dtype=torch.double, requires_grad=True)
    advantages = torch.tensor([[1.5, -1.5, 1.5, -1.5]], dtype=torch.double)
    return new, new.detach().clone(), advantages, torch.ones(1, 4)


def test_clip_cov_drops_tokens_between_the_bounds() -> None:
    new, *rest = covariance_batch()
    loss, metrics = POLICY_LOSSES["clip_cov"](new, *rest, clip_cov_ratio=0.5, clip_cov_lb=1.0, clip_cov_ub=5.0)
    assert gradient_of(loss, new).abs().gt(0).tolist() == [[False, True, True, False]]
    assert metrics["pg_clipfrac"] == 0.5
    new, *rest = covariance_batch()
    loss, metrics = POLICY_LOSSES["clip_cov"](new, *rest)  # 2e-4 of four tokens, but at least one
    assert int(gradient_of(loss, new).eq(0).sum()) == 1
    assert metrics["pg_clipfrac"] == 0.25


def test_clip_cov_is_reproducible_with_a_generator() -> None:
    batch = covariance_batch()
    gradients = [
        gradient_of(POLICY_LOSSES["clip_cov"](*batch, generator=torch.Generator().manual_seed(seed))[0], batch[0])
        for seed in (1, 1, 2, 3, 4, 5, 6, 7)
    ]
    assert torch.equal(gradients[0], gradients[1])
    assert any(not torch.equal(gradients[0], other) for other in gradients[2:])


def test_kl_cov_penalises_the_highest_covariances() -> None:
    new, old, advantages, mask = covariance_batch()
    loss, _ = POLICY_LOSSES["kl_cov"](new, old - 0.1, advantages, mask, kl_cov_ratio=0.5, ppo_kl_coef=2.0)
    plain = (-advantages * math.exp(0.1)).mean()
    assert loss.item() == pytest.approx(float(plain) + 2.0 * 0.1 * 2 / 4)


def test_rollout_weights_scale_each_token() -> None:
    new, old, advantages, mask = random_batch(8)
    weights = torch.rand(6, 7, dtype=torch.double)
    loss, _ = POLICY_LOSSES["gpg"](new, old, advantages, mask, rollout_is_weights=weights)
    torch.testing.assert_close(loss, aggregate_loss(-advantages * new * weights, mask, "token-mean"))


def test_low_precision_inputs_are_widened() -> None:
    new, old, advantages, mask = random_batch(2)
    loss, _ = POLICY_LOSSES["vanilla"](new.bfloat16(), old.bfloat16(), advantages.bfloat16(), mask)
    assert loss.dtype == torch.float32


def test_unknown_names_and_options_are_refused() -> None:
    new, old, advantages, mask = random_batch(2)
    with pytest.raises(ValueError, match="Did you mean 'token-mean'"):
        POLICY_LOSSES["vanilla"](new, old, advantages, mask, loss_agg_mode="token_mean")
    with pytest.raises(TypeError, match="tau_pos"):
        POLICY_LOSSES["vanilla"](new, old, advantages, mask, tau_pos=1.0)
    with pytest.raises(ValueError, match="scale"):
        aggregate_loss(new, mask, "seq-mean-token-sum-norm", scale=0)


@given(seed=seeds, cut=st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_value_loss_adds_up_and_ignores_masked_places(seed: int, cut: int) -> None:
    vpreds, returns, old, mask = random_batch(seed)
    dirty = [torch.where(mask, values, math.nan) for values in (vpreds, returns, old)]
    leaf = vpreds.clone().requires_grad_()
    whole, fraction = value_loss(leaf, returns, old, mask, cliprange=0.2)
    shares = [
        value_loss(*(values[rows] for values in dirty), mask[rows], cliprange=0.2, num_tokens=int(mask.sum()))
        for rows in (slice(cut), slice(cut, None))
    ]
    torch.testing.assert_close(shares[0][0] + shares[1][0], whole.detach())
    assert shares[0][1] + shares[1][1] == pytest.approx(fraction, abs=1e-6)
    spoiled = dirty[0].clone().requires_grad_()
    gradient = gradient_of(value_loss(spoiled, dirty[1], dirty[2], mask, cliprange=0.2)[0], spoiled)
    torch.testing.assert_close(gradient, gradient_of(whole, leaf))


def test_value_loss_of_a_masked_batch_is_zero() -> None:
    vpreds = torch.randn(2, 3, requires_grad=True)
    loss, fraction = value_loss(vpreds, torch.randn(2, 3), torch.randn(2, 3), torch.zeros(2, 3), cliprange=0.5)
    assert (loss.item(), fraction) == (0.0, 0.0)
    assert not gradient_of(loss, vpreds).any()


@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_geo_mean_takes_the_geometric_mean_of_importance_weights(seed: int) -> None:
    """GMPO in plain torch, one row at a time; verl weights it alike."""
    new, old, advantages, mask = random_batch(seed)
    weights = torch.rand(6, 7, dtype=torch.double, generator=torch.Generator().manual_seed(seed)) * 2 + 0.1
    rows = []
    for row in range(6):
        kept = mask[row]
        if not kept.any():
            continue
        advantage = advantages[row, 0]
        ratio = (new[row][kept] - old[row][kept]).exp()
        clipped = ratio.clamp(math.exp(-0.2), math.exp(0.2))
        ratio = torch.minimum(ratio, clipped) if advantage > 0 else torch.maximum(ratio, clipped)
        count = int(kept.sum())
        rows.append(-advantage * ratio.prod() ** (1 / count) * weights[row][kept].prod() ** (1 / count))
    loss, _ = POLICY_LOSSES["geo_mean"](new, old, advantages, mask, rollout_is_weights=weights)
    expected = torch.stack(rows).mean() if rows else torch.zeros((), dtype=torch.double)
    torch.testing.assert_close(loss, expected)
