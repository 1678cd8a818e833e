"""The estimators of `agentrl eval` against closed forms and against enumeration."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.jobs.statistics import Estimate, majority_at_k, paired_bootstrap, pass_at_k, powers_up_to


@pytest.mark.parametrize(
    ("passed", "n", "k", "wanted"),
    [(0, 5, 3, 0.0), (5, 5, 1, 1.0), (2, 4, 1, 0.5), (2, 4, 2, 5 / 6), (2, 4, 4, 1.0), (1, 10, 5, 0.5), (3, 4, 2, 1.0)],
)
def test_pass_at_k_has_its_closed_form(passed: int, n: int, k: int, wanted: float) -> None:
    assert pass_at_k(passed, n, k) == pytest.approx(wanted)


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.integers(1, 9))
def test_pass_at_k_is_the_share_of_subsets_that_pass(passes: list[bool], k: int) -> None:
    if k > len(passes):
        with pytest.raises(ValueError, match="pass_at_k"):
            pass_at_k(sum(passes), len(passes), k)
        return
    shares = [any(subset) for subset in combinations(passes, k)]
    assert pass_at_k(sum(passes), len(passes), k) == pytest.approx(np.mean(shares))


def test_pass_at_k_is_exact_where_factorials_overflow_floats() -> None:
    assert pass_at_k(1, 5000, 2500) == 0.5


def test_a_mean_has_the_standard_error_of_its_prompts() -> None:
    estimate = Estimate.of([0.0, 1.0, 0.5, 0.5])
    assert estimate.value == 0.5
    assert estimate.error == pytest.approx(math.sqrt((0.25 + 0.25) / 3) / 2)
    assert Estimate.of([1.0]).error is None


def test_the_majority_is_that_of_every_subset() -> None:
    scores, votes = [1.0, 0.0, 0.0, 1.0], ["a", "b", "c", "a"]
    assert majority_at_k(scores, votes, 4) == 1.0
    assert majority_at_k(scores, votes, 1) == 0.5
    # Of two, "aa" wins with 1; every other pair is a draw of its two scores.
    pairs = [np.mean([scores[i], scores[j]]) for i, j in combinations(range(4), 2)]
    assert majority_at_k(scores, votes, 2) == pytest.approx(np.mean(pairs))
    # Of three: aab, aac -> a twice each way (abc is a draw of 1, 0, 0).
    assert majority_at_k(scores, votes, 3) == pytest.approx((1 + 1 + 1 / 3 + 1 / 3) / 4)


def test_a_response_without_an_answer_does_not_vote() -> None:
    assert majority_at_k([0.0, 0.0, 1.0], [None, None, "4"], 3) == 1.0
    assert majority_at_k([0.0, 0.5], [None, None], 2) == 0.25


def test_many_subsets_are_drawn_with_a_seed() -> None:
    scores = [float(i % 3 == 0) for i in range(24)]
    votes = [str(i % 3) for i in range(24)]
    first = majority_at_k(scores, votes, 12, seed=3)
    assert first == majority_at_k(scores, votes, 12, seed=3)
    assert first == pytest.approx(1 / 3, abs=0.05)


def test_the_default_ks_are_powers_of_two_and_n() -> None:
    assert powers_up_to(1) == [1]
    assert powers_up_to(5) == [1, 2, 4, 5]
    assert powers_up_to(8) == [1, 2, 4, 8]


def test_the_bootstrap_agrees_with_the_normal_interval() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(0.4, 0.3, 400)
    b = a + rng.normal(0.05, 0.1, 400)  # prompts differ far more than the two do on one prompt
    found = paired_bootstrap(a.tolist(), b.tolist(), seed=1)
    error = (b - a).std(ddof=1) / math.sqrt(400)
    assert found.mean_b - found.mean_a == pytest.approx((b - a).mean())
    assert found.low == pytest.approx((b - a).mean() - 1.96 * error, abs=0.002)
    assert found.high == pytest.approx((b - a).mean() + 1.96 * error, abs=0.002)
    assert found.is_clear
    assert found.better > 0.99
    assert found == paired_bootstrap(a.tolist(), b.tolist(), seed=1)


def test_the_bootstrap_is_antisymmetric_and_knows_equal_runs() -> None:
    a, b = [0.0, 1.0, 1.0, 0.0, 0.5], [1.0, 1.0, 0.0, 0.0, 1.0]
    there, back = paired_bootstrap(a, b, seed=2), paired_bootstrap(b, a, seed=2)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))
    assert there.better == pytest.approx(1 - back.better)
    same = paired_bootstrap(a, a, seed=2)
    assert (same.low, same.high, same.better) == (0.0, 0.0, 0.5)
    assert not same.is_clear


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    hits = 0
    for seed in range(200):
        differences = rng.binomial(1, 0.6, 100) - rng.binomial(1, 0.5, 100)
        found = paired_bootstrap([0.0] * 100, differences.tolist(), seed=seed, resamples=500)
        hits += found.low <= 0.1 <= found.high
    assert 0.89 <= hits / 200 <= 0.99


def test_a_bootstrap_of_many_prompts_is_made_in_pieces() -> None:
    values = np.linspace(0, 1, 5000).tolist()
    found = paired_bootstrap([0.0] * 5000, values, seed=1, resamples=2000)
    assert found.low < 0.5 < found.high
