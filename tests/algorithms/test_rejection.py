"""Rollout correction against formulas written out here, row by row and token by token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.algorithms import REJECTION_KINDS, Rejection, rollout_correction

LOG_RATIOS = [[0.2, -0.4, None, 0.1], [0.9, None, 0.7, -0.1], [-2.5, 0.3, 0.2, 0.1], [None, None, None, None]]
"""log(policy / rollout) of each token; None: not sampled."""


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    rollout = -1.0 - torch.rand(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    ratios = torch.tensor([[0.0 if value is None else value for value in row] for row in LOG_RATIOS]).double()
    mask = torch.tensor([[value is not None for value in row] for row in LOG_RATIOS])
    noise = torch.where(mask, 0.0, torch.nan)  # what was not sampled never matters
    return rollout + ratios + noise, rollout, mask.long()


def sampled(row: int) -> list[float]:
    return [value for value in LOG_RATIOS[row] if value is not None]


def statistic(kind: str, logs: list[float]) -> float:
    """Of a row or, for token kinds, of one token."""
    if kind in ("token", "sequence"):
        return math.exp(sum(logs))
    if kind == "geometric":
        return math.exp(sum(logs) / len(logs))
    level, divergence = kind.rsplit("_", 1)
    values = {
        "k1": [-value for value in logs],
        "k2": [value**2 / 2 for value in logs],
        "k3": [math.exp(value) - 1 - value for value in logs],
    }[divergence]
    return {"token": sum, "seq_sum": sum, "seq_max": max, "seq_mean": lambda all_: sum(all_) / len(all_)}[level](values)


def expected(kind: str, low: float, high: float) -> list[list[int]]:
    def fits(value: float) -> bool:
        if kind.endswith("k1"):
            return math.log(low) <= value <= math.log(high)
        return value <= high and (kind[-2] == "k" or value >= low)

    kept = []
    for row, values in enumerate(LOG_RATIOS):
        if kind.startswith("token"):
            kept.append([int(value is not None and fits(statistic(kind, [value]))) for value in values])
        else:
            whole = bool(sampled(row)) and fits(statistic(kind, sampled(row)))
            kept.append([int(value is not None and whole) for value in values])
    return kept


@pytest.mark.parametrize("kind", REJECTION_KINDS)
@pytest.mark.parametrize(("low", "high"), [(0.7, 1.3), (0.4, 2.0), (0.9, 1.1), (0.2, 9.0)])
def test_every_kind_of_rejection(kind: str, low: float, high: float) -> None:
    high = high / 10 if kind.endswith(("k2", "k3")) else high
    old, rollout, mask = tensors()
    rule = Rejection(kind, 0.0 if kind.endswith(("k2", "k3")) else low, high)
    _, kept, metrics = rollout_correction(old, rollout, mask, is_level=None, rejections=[rule])
    assert kept.tolist() == expected(kind, low, high)
    alone = 1 - sum(map(sum, kept.tolist())) / int(mask.sum())
    assert metrics[f"rollout_corr/rs_{kind}_masked_fraction"] == pytest.approx(alone)
    assert metrics["rollout_corr/rs_masked_fraction"] == pytest.approx(alone)
    tokens = [value for row in range(4) for value in sampled(row)]
    of_rows = [statistic(kind, sampled(row)) for row in range(4) for _ in sampled(row)]
    mean = [statistic(kind, [value]) for value in tokens] if kind.startswith("token") else of_rows
    assert metrics[f"rollout_corr/rs_{kind}_mean"] == pytest.approx(sum(mean) / len(mean), rel=1e-5)


def test_what_is_left_has_passed_every_rule() -> None:
    old, rollout, mask = tensors()
    rules = [Rejection("token_k1", 0.5, 2.0), Rejection("seq_max_k2", 0.0, 1.0)]
    _, kept, metrics = rollout_correction(old, rollout, mask, is_level=None, rejections=rules, rs=(0.5, 1.3))
    both = [
        [a * b * c for a, b, c in zip(*rows, strict=True)]
        for rows in zip(
            expected("token_k1", 0.5, 2.0),
            expected("seq_max_k2", 0, 1.0),
            expected("geometric", 0.5, 1.3),
            strict=True,
        )
    ]
    assert kept.tolist() == both
    assert {f"rollout_corr/rs_{kind}_mean" for kind in ("token_k1", "seq_max_k2", "geometric")} <= metrics.keys()


def test_one_absurd_token_vetoes_its_row() -> None:
    old, rollout, mask = tensors()
    _, kept, metrics = rollout_correction(old, rollout, mask, is_level=None, veto_threshold=0.1)
    assert kept.tolist() == [mask[0].tolist(), mask[1].tolist(), [0] * 4, [0] * 4]  # exp(-2.5) is 0.08
    assert metrics["rollout_corr/veto_seq_fraction"] == pytest.approx(1 / 3)
    assert rollout_correction(old, rollout, mask, is_level=None, veto_threshold=0.08)[1].equal(mask)


def weight(level: str, row: int, value: float) -> float:
    logs = sampled(row)
    return math.exp({"token": value, "sequence": sum(logs), "geometric": sum(logs) / len(logs)}[level])


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("normalize", [False, True])
def test_weights_of_every_level_cut_and_normalised(level: str, normalize: bool) -> None:
    old, rollout, mask = tensors()
    weights, kept, metrics = rollout_correction(
        old, rollout, mask, is_level=level, is_threshold=1.25, is_batch_normalize=normalize
    )
    cut = [[value and min(weight(level, row, value), 1.25) for value in LOG_RATIOS[row]] for row in range(4)]
    by_row = [[value for value in row if value is not None] for row in cut]
    rows = [sum(row) / len(row) for row in by_row if row]
    tokens = [value for row in by_row for value in row]
    mean = (sum(tokens) / len(tokens) if level == "token" else sum(rows) / len(rows)) if normalize else 1.0
    wanted = [[0.0 if value is None else value / mean for value in row] for row in cut]
    torch.testing.assert_close(weights.double(), torch.tensor(wanted, dtype=torch.double), rtol=1e-5, atol=1e-6)
    assert kept.equal(mask)
    assert metrics.get("rollout_corr/is_batch_norm_factor", 1.0) == pytest.approx(mean, rel=1e-5)


def test_weights_outside_of_two_bounds_are_zero_but_stay_in_the_mean() -> None:
    old, rollout, mask = tensors()
    weights, kept, metrics = rollout_correction(old, rollout, mask, is_level="token", is_threshold=(0.5, 2.0))
    wanted = [
        [0.0 if value is None or not 0.5 <= math.exp(value) <= 2 else math.exp(value) for value in row]
        for row in LOG_RATIOS
    ]
    torch.testing.assert_close(weights.double(), torch.tensor(wanted, dtype=torch.double), rtol=1e-5, atol=1e-6)
    assert kept.equal(mask)
    assert metrics["rollout_corr/is_truncated_fraction"] == pytest.approx(3 / 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rejections": [Rejection("seq_mean_k4", 0, 1)]}, "Did you mean 'seq_mean_k"),
        ({"rejections": [Rejection("token_k1", 0.0, 1.0)]}, "low <= high"),
        ({"rejections": [Rejection("token_k2", 2.0, 1.0)]}, "low <= high"),
        ({"veto_threshold": 0.0}, "veto threshold"),
        ({"is_threshold": (2.0, 1.0)}, "must be positive"),
    ],
)
def test_rules_that_mean_nothing(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rollout_correction(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), is_level=None, **options)


@pytest.mark.parametrize("kind", REJECTION_KINDS)
def test_extremes_and_empty_masks_are_survived(kind: str) -> None:
    rule = Rejection(kind, 0.1, 10.0)
    far = torch.full((2, 400), -900.0)
    for old, rollout in ((far, torch.zeros(2, 400)), (torch.zeros(2, 400), far)):
        _, kept, metrics = rollout_correction(old, rollout, torch.ones(2, 400), is_level=None, rejections=[rule])
        assert not kept.any()
        assert all(map(math.isfinite, metrics.values()))
    _, kept, metrics = rollout_correction(far * math.nan, far, torch.zeros(2, 400), rejections=[rule])
    assert not kept.any()
    assert all(map(math.isfinite, metrics.values()))


@pytest.mark.parametrize("threshold", [0.5, (2.0, 5.0)])
def test_without_a_level_weights_are_1_whatever_their_bounds(threshold: float | tuple[float, float]) -> None:
    old, mask = torch.zeros(1, 2), torch.ones(1, 2)
    weights, _, metrics = rollout_correction(old, old, mask, is_level=None, is_threshold=threshold, veto_threshold=1e-4)
    assert weights.tolist() == [[1, 1]]
    assert metrics["rollout_corr/is_truncated_fraction"] == 0
