"""Advantage estimators against slow loops written from the formulas, and the properties that must hold for all."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl.algorithms import ADVANTAGE_ESTIMATORS, group_metrics, masked_whiten, zero_variance_rows

GROUPED = ["grpo", "rloo", "reinforce_plus_plus_baseline", "opo", "gpg", "grpo_passk"]
seeds = st.integers(0, 10_000)


def random_case(seed: int, rows: int = 6, tokens: int = 9) -> dict[str, object]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "token_level_rewards": torch.randn(rows, tokens, generator=generator),
        "response_mask": torch.rand(rows, tokens, generator=generator) < 0.6,
        "values": torch.randn(rows, tokens, generator=generator),
        "group_ids": torch.randint(0, 3, (rows,), generator=generator).tolist(),
        "baselines": torch.randn(rows, generator=generator),
    }


def run(name: str, case: dict[str, object], **options: float) -> tuple[Tensor, Tensor]:
    return ADVANTAGE_ESTIMATORS[name](**{**case, **options})  # type: ignore[arg-type]


@given(seed=seeds, gamma=st.sampled_from([1.0, 0.9, 0.0]), lam=st.sampled_from([1.0, 0.95, 0.0]))
@settings(max_examples=40, deadline=None)
def test_gae_equals_the_recursion(seed: int, gamma: float, lam: float) -> None:
    case = random_case(seed)
    rewards, mask, values = (case[key] for key in ("token_level_rewards", "response_mask", "values"))
    assert isinstance(rewards, Tensor)
    assert isinstance(mask, Tensor)
    assert isinstance(values, Tensor)
    expected = torch.zeros_like(rewards)
    for row in range(len(rewards)):
        next_value = next_advantage = 0.0
        for t in reversed(range(rewards.shape[1])):
            if mask[row, t]:
                delta = float(rewards[row, t]) + gamma * next_value - float(values[row, t])
                next_advantage = delta + gamma * lam * next_advantage
                next_value = float(values[row, t])
                expected[row, t] = next_advantage
    advantages, returns = run("gae", case, gamma=gamma, lam=lam)
    torch.testing.assert_close(returns, torch.where(mask, expected + values, 0.0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(advantages, masked_whiten(expected, mask), atol=1e-5, rtol=1e-5)


@given(seed=seeds, gamma=st.sampled_from([1.0, 0.9, 0.0]))
@settings(max_examples=40, deadline=None)
def test_reward_to_go_equals_the_recursion(seed: int, gamma: float) -> None:
    case = random_case(seed)
    rewards, mask = case["token_level_rewards"], case["response_mask"]
    assert isinstance(rewards, Tensor)
    assert isinstance(mask, Tensor)
    expected = torch.zeros_like(rewards)
    for row in range(len(rewards)):
        running = 0.0
        for t in reversed(range(rewards.shape[1])):
            if mask[row, t]:
                running = float(rewards[row, t]) + gamma * running
                expected[row, t] = running
    advantages, returns = run("reinforce_plus_plus", case, gamma=gamma)
    torch.testing.assert_close(returns, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(advantages, masked_whiten(expected, mask), atol=1e-5, rtol=1e-5)


def outcome_case(rewards: list[float], lengths: list[int], groups: list[str]) -> dict[str, object]:
    width = max(lengths)
    mask = torch.tensor([[1.0] * n + [0.0] * (width - n) for n in lengths])
    token_rewards = torch.zeros_like(mask)
    for row, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        token_rewards[row, length - 1] = reward
    return {"token_level_rewards": token_rewards, "response_mask": mask, "group_ids": groups}


def per_row(advantages: Tensor) -> list[float]:
    return advantages[:, 0].tolist()


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        # Group a: rewards 1, 3, 8 of lengths 1, 2, 3; group b: 0, 5 of lengths 2, 2.
        ("grpo", {"norm_adv_by_std": False}, [-3, -1, 4, -2.5, 2.5]),
        ("grpo", {}, [-3 / 13**0.5, -1 / 13**0.5, 4 / 13**0.5, -0.5 * 2**0.5, 0.5 * 2**0.5]),
        ("rloo", {}, [-4.5, -1.5, 6, -5, 5]),
        ("opo", {}, [1 - 31 / 6, 3 - 31 / 6, 8 - 31 / 6, -2.5, 2.5]),
        ("gpg", {}, [-3 * 1.25, -1.25, 4 * 1.25, -2.5 * 1.25, 2.5 * 1.25]),
        ("grpo_passk", {"norm_adv_by_std": False}, [0, 0, 5, 0, 5]),
        ("grpo_passk", {}, [0, 0, 5 / 13**0.5, 0, 5 / 12.5**0.5]),
    ],
)
def test_worked_examples(name: str, options: dict[str, bool], expected: list[float]) -> None:
    case = outcome_case([1, 3, 8, 0, 5], [1, 2, 3, 2, 2], ["a", "a", "a", "b", "b"])
    advantages, _ = run(name, case, **options)
    assert per_row(advantages) == pytest.approx(expected, abs=1e-4)


def test_reinforce_plus_plus_baseline_whitens_over_tokens() -> None:
    case = outcome_case([1, 0, 3, 1], [1, 3, 2, 2], ["a", "a", "b", "b"])
    advantages, _ = run("reinforce_plus_plus_baseline", case)
    mask = case["response_mask"]
    assert isinstance(mask, Tensor)
    centred = torch.tensor([[0.5], [-0.5], [1.0], [-1.0]]) * mask
    torch.testing.assert_close(advantages, masked_whiten(centred, mask))


def test_remax_subtracts_the_greedy_reward() -> None:
    case = outcome_case([1.0, 0.0], [2, 3], ["a", "a"]) | {"baselines": torch.tensor([0.25, 0.5])}
    advantages, returns = run("remax", case)
    assert advantages.tolist() == [[0.75, 0.75, 0], [-0.5, -0.5, -0.5]]
    assert returns.tolist() == [[1, 1, 0], [0, 0, 0]]


def test_passk_gives_nothing_to_a_tie_at_the_top() -> None:
    advantages, _ = run("grpo_passk", outcome_case([2, 2, 1], [1, 1, 1], ["a"] * 3))
    assert not advantages.any()


@pytest.mark.parametrize("name", GROUPED)
def test_a_group_of_one_gives_no_gradient(name: str) -> None:
    case = outcome_case([5, 1, 1], [2, 2, 2], ["alone", "pair", "pair"])
    assert not run(name, case)[0][0].any()


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 1e6])
def test_equal_rewards_give_exact_zeros(name: str, reward: float) -> None:
    advantages, _ = run(name, outcome_case([reward] * 7, [3] * 7, ["g"] * 7))
    assert not advantages.any()


@pytest.mark.parametrize("name", ADVANTAGE_ESTIMATORS)
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_what_stands_at_masked_places_does_not_matter(name: str, seed: int) -> None:
    case = random_case(seed)
    mask = case["response_mask"]
    assert isinstance(mask, Tensor)
    spoiled = dict(case)
    for key in ("token_level_rewards", "values"):
        value = case[key]
        assert isinstance(value, Tensor)
        spoiled[key] = torch.where(mask, value, math.nan)
    for clean, dirty in zip(run(name, case), run(name, spoiled), strict=True):
        assert torch.equal(clean, dirty)
        assert not clean[~mask].any()


@pytest.mark.parametrize("name", ADVANTAGE_ESTIMATORS)
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_the_order_of_rows_does_not_matter(name: str, seed: int) -> None:
    case = random_case(seed)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    groups = case["group_ids"]
    assert isinstance(groups, list)
    shuffled = {key: value[order] for key, value in case.items() if isinstance(value, Tensor)}
    shuffled["group_ids"] = [("renamed", groups[row]) for row in order.tolist()]
    for plain, permuted in zip(run(name, case), run(name, shuffled), strict=True):
        torch.testing.assert_close(plain[order], permuted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ADVANTAGE_ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_wholly_masked_batch_gives_zeros(name: str, dtype: torch.dtype) -> None:
    case = random_case(1)
    case["response_mask"] = torch.zeros(6, 9)
    rewards = case["token_level_rewards"]
    assert isinstance(rewards, Tensor)
    case["token_level_rewards"] = rewards.to(dtype)
    for tensor in run(name, case):
        assert tensor.dtype == dtype
        assert torch.equal(tensor, torch.zeros(6, 9, dtype=dtype))


@pytest.mark.parametrize("name", ADVANTAGE_ESTIMATORS)
@pytest.mark.parametrize(("rows", "tokens"), [(0, 4), (3, 0), (1, 1)])
def test_edge_shapes(name: str, rows: int, tokens: int) -> None:
    shape = (rows, tokens)
    advantages, returns = ADVANTAGE_ESTIMATORS[name](
        torch.ones(shape),
        torch.ones(shape),
        values=torch.ones(shape),
        group_ids=["a"] * rows,
        baselines=torch.ones(rows),
    )
    assert advantages.shape == returns.shape == shape
    assert torch.isfinite(advantages).all()


@given(seed=seeds, shift=st.floats(-5, 5), scale=st.floats(0.1, 10))
@settings(max_examples=30, deadline=None)
def test_whitening(seed: int, shift: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(4, 8, generator=generator)
    mask = torch.rand(4, 8, generator=generator) < 0.7
    mask[0, :3] = True
    white = masked_whiten(values, mask)
    assert float(white[mask].mean()) == pytest.approx(0, abs=1e-5)
    assert float(white[mask].var()) == pytest.approx(1, abs=1e-3)
    torch.testing.assert_close(masked_whiten(values * scale + shift, mask), white, atol=1e-3, rtol=1e-3)


def test_whitening_one_token_gives_zero() -> None:
    assert masked_whiten(torch.tensor([[3.0, 7.0]]), torch.tensor([[0, 1]])).tolist() == [[0, 0]]


def test_long_rows_do_not_lose_precision() -> None:
    rewards = torch.zeros(2, 16384)
    rewards[:, -1] = 1.0
    _, returns = ADVANTAGE_ESTIMATORS["reinforce_plus_plus"](rewards, torch.ones_like(rewards), gamma=0.999)
    expected = 0.999 ** torch.arange(16383, -1, -1, dtype=torch.double)
    torch.testing.assert_close(returns[0].double(), expected, rtol=1e-5, atol=1e-12)


def test_groups_without_variance_are_counted() -> None:
    case = outcome_case([1, 1, 0, 1, 4, 2, 2, 2], [1] * 8, ["a", "a", "b", "b", "c", "d", "d", "d"])
    rewards, mask, groups = case["token_level_rewards"], case["response_mask"], case["group_ids"]
    assert isinstance(rewards, Tensor)
    assert isinstance(mask, Tensor)
    assert isinstance(groups, list)
    assert zero_variance_rows(rewards, mask, groups).tolist() == [True, True, False, False, True, True, True, True]
    assert group_metrics(rewards, mask, groups) == {"rollout/zero_variance_groups": 3.0, "rollout/groups_of_one": 1.0}


def test_group_ids_may_be_a_tensor() -> None:
    """Its elements hash by identity: taken as they are, no row would have a group and none a gradient."""
    rewards, mask = torch.tensor([[1.0], [0.0], [0.0], [1.0]]), torch.ones(4, 1)
    expected = ADVANTAGE_ESTIMATORS["grpo"](rewards, mask, group_ids=[0, 0, 1, 1])[0]
    ids = torch.tensor([0, 0, 1, 1])
    for group_ids in (ids, list(ids)):
        arguments: dict[str, Any] = {"group_ids": group_ids}
        assert torch.equal(ADVANTAGE_ESTIMATORS["grpo"](rewards, mask, **arguments)[0], expected)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("gae", {}, "needs values"),
        ("gae", {"values": torch.ones(2, 4)}, "needs values"),
        ("grpo", {}, "needs group_ids"),
        ("grpo", {"group_ids": ["a"]}, "1 entries for 2 rows"),
        ("remax", {}, "needs baselines"),
        ("remax", {"baselines": torch.ones(2, 3)}, "needs baselines"),
    ],
)
def test_missing_arguments_are_named(name: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ADVANTAGE_ESTIMATORS[name](torch.ones(2, 3), torch.ones(2, 3), **arguments)  # type: ignore[arg-type]


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"must both be \(B, T\)"):
        ADVANTAGE_ESTIMATORS["grpo"](torch.ones(2), torch.ones(2, 3), group_ids=["a", "b"])
