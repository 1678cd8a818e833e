"""What an evaluation computes from scores: mean@n, pass@k, maj@k, and the paired bootstrap of two evaluations.

Every statistic is a mean over prompts of a number per prompt, so that prompts with more responses count no more. With
the scores `[1, 0, 0, 1]` of one prompt::

    mean@4 = 1/2    pass@1 = 1/2    pass@2 = 1 - C(2,2) / C(4,2) = 5/6    pass@4 = 1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_MOST_SUBSETS = 1000
"""maj@k looks at all subsets of the responses; where there are more than this, at this many drawn ones."""
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over prompts."""

    value: float
    error: float | None
    """Its standard error; None: of one prompt."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """The mean of one value per prompt; prompts are independent, the responses of a prompt are not."""
        error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
        return cls(float(np.mean(values)), error)


def pass_at_k(passed: int, n: int, k: int) -> float:
    """The chance that at least one of `k` responses passes, without bias, from `n` of which `passed` did.

    `1 - C(n - c, k) / C(n, k)`: the share of subsets of `k` responses with at least one of the `c` that passed (Chen et
    al., 2021, "Evaluating Large Language Models Trained on Code", equation 1).

    Raises:
        ValueError: not `0 <= passed <= n` and `1 <= k <= n`.
    """
    if not (0 <= passed <= n and 1 <= k <= n):
        raise ValueError(f"pass_at_k: got passed={passed}, n={n}, k={k}, wanted 0 <= passed <= n and 1 <= k <= n")
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)


def majority_at_k(scores: Sequence[float], votes: Sequence[Any], k: int, seed: int = 0) -> float:
    """The expected score of the most frequent answer among `k` of the responses.

    All subsets of `k` are looked at, or 1,000 drawn ones where there are more. Of several answers that are equally
    frequent each counts the same. A response without an answer does not vote, unless none of the subset has one.

    Args:
        scores: of one prompt's responses.
        votes: their answers; None: none was found.
        k: the number of responses that vote.
        seed: of the draw.
    """
    n = len(scores)
    if math.comb(n, k) <= _MOST_SUBSETS:
        subsets: Any = combinations(range(n), k)
    else:
        rng = np.random.default_rng([seed, n, k])
        subsets = (rng.permutation(n)[:k] for _ in range(_MOST_SUBSETS))
    return float(np.mean([_winner([(votes[i], scores[i]) for i in subset]) for subset in subsets]))


def _winner(ballots: Sequence[tuple[Any, float]]) -> float:
    """The mean score of the winning answers' responses."""
    answered = [ballot for ballot in ballots if ballot[0] is not None] or list(ballots)
    by_answer: dict[str, list[float]] = {}
    for vote, score in answered:
        by_answer.setdefault(str(vote), []).append(score)
    most = max(map(len, by_answer.values()))
    return float(np.mean([np.mean(scores) for scores in by_answer.values() if len(scores) == most]))


def powers_up_to(n: int) -> list[int]:
    """1, 2, 4, … and n."""
    return sorted({1 << place for place in range(n.bit_length()) if 1 << place <= n} | {n})


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """By how much B is better than A on the same prompts."""

    prompts: int
    mean_a: float
    mean_b: float
    low: float
    high: float
    """The 95 % confidence interval of `mean_b - mean_a`."""
    better: float
    """Share of the bootstrap samples in which B is better; equal ones count half."""

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def paired_bootstrap(
    a: Sequence[float], b: Sequence[float], *, seed: int, resamples: int = 10_000, level: float = 0.95
) -> PairedDifference:
    """Percentile bootstrap over prompts of the mean difference (Efron & Tibshirani, 1993, chapter 13).

    A resample draws prompts, and takes of each both values: what makes a prompt hard is the same for both.

    Args:
        a: one value per prompt.
        b: the same prompts, in the same order.
        seed: of the resamples.
        resamples: how many.
        level: of the interval.
    """
    differences = np.asarray(b, np.float64) - np.asarray(a, np.float64)
    rng = np.random.default_rng(seed)
    means = _resampled_means(differences, rng, resamples)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    better = float((means > 0).mean() + (means == 0).mean() / 2)
    return PairedDifference(len(differences), float(np.mean(a)), float(np.mean(b)), float(low), float(high), better)


def _resampled_means(values: Floats, rng: np.random.Generator, resamples: int) -> Floats:
    """The means of samples with replacement, made in pieces: 10,000 of 5,000 prompts would be 400 MB of numbers."""
    at_once = max(1, _CHUNK // len(values))
    pieces = [
        values[rng.integers(0, len(values), (min(at_once, resamples - start), len(values)))].mean(axis=1)
        for start in range(0, resamples, at_once)
    ]
    return np.concatenate(pieces)


def mean_over_prompts(groups: Sequence[Sequence[float]], of: Callable[[Sequence[float]], float]) -> Estimate:
    """The estimate of a statistic of each prompt."""
    return Estimate.of([of(group) for group in groups])
