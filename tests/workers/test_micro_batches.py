"""Micro-batches: every trained token exactly once, next to no padding, limits kept."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.data_proto import DataProto
from agentrl.errors import DataProtoError
from agentrl.testing.batches import random_batch
from agentrl.workers.micro_batch_plan import MicroLimits, cut_rows, cut_shared
from agentrl.workers.micro_batches import MicroBatch, RowLayout

LENGTHS = [(3, 5), (7, 1), (1, 9), (4, 4), (5, 0), (2, 12)]


def brute_force_cost(lengths: list[int], limits: MicroLimits) -> int:
    ordered = sorted(lengths)
    best = None
    for cuts in itertools.product([False, True], repeat=len(ordered) - 1):
        bounds = [0, *[i + 1 for i, cut in enumerate(cuts) if cut], len(ordered)]
        groups = [ordered[a:b] for a, b in itertools.pairwise(bounds)]
        if any(len(group) > 1 and len(group) * group[-1] > limits.max_tokens for group in groups):
            continue
        cost = sum(len(group) * group[-1] + limits.overhead_tokens for group in groups)
        best = cost if best is None else min(best, cost)
    assert best is not None
    return best


def groups_of(lengths: list[int], limits: MicroLimits) -> list[list[int]]:
    cut = cut_rows(range(len(lengths)), lengths, limits)
    return [[row for piece in group for row in piece.rows] for group in cut.groups]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(5, 120), st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_rows_are_cut_where_padding_and_overhead_are_least(lengths: list[int], budget: int, overhead: int) -> None:
    limits = MicroLimits(max_tokens=budget, overhead_tokens=overhead)
    groups = groups_of(lengths, limits)
    assert sorted(itertools.chain(*groups)) == list(range(len(lengths)))
    longest = [max(lengths[i] for i in group) for group in groups]
    assert longest == sorted(longest, reverse=True)
    for group, most in zip(groups, longest, strict=True):
        assert len(group) == 1 or len(group) * most <= budget
    cost = sum(len(group) * most + overhead for group, most in zip(groups, longest, strict=True))
    assert cost == brute_force_cost(lengths, limits) == cut_rows(range(len(lengths)), lengths, limits).cost


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(5, 120))
@settings(max_examples=60, deadline=None)
def test_packed_runs_fill_the_budget(lengths: list[int], budget: int) -> None:
    groups = groups_of(lengths, MicroLimits(max_tokens=budget, packed=True))
    assert sorted(itertools.chain(*groups)) == list(range(len(lengths)))
    sums = [sum(lengths[i] for i in group) for group in groups]
    assert all(total <= budget or len(group) == 1 for total, group in zip(sums, groups, strict=True))
    # Neighbours would not have fitted together, so the number of groups is within twice the least possible.
    assert all(a + b > budget for a, b in itertools.pairwise(sums))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), min_size=1, max_size=30),
    st.integers(5, 200),
    st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_rows_behind_shared_prompts_fit_too(rows: list[tuple[int, int]], budget: int, prompt: int) -> None:
    limits = MicroLimits(max_tokens=budget, overhead_tokens=10)
    numbers, lengths = [number for number, _ in rows], [length for _, length in rows]
    cut = cut_shared(range(len(rows)), numbers, [prompt + number for number in numbers], lengths, limits)
    pieces = [piece for group in cut.groups for piece in group]
    assert sorted(row for piece in pieces for row in piece.rows) == list(range(len(rows)))
    cost = 0
    for group in cut.groups:
        width = max(piece.longest for piece in group)
        tokens = sum(len(piece.rows) for piece in group) * width + len(group) * max(piece.prompt for piece in group)
        assert tokens <= budget or len(group) == 1
        cost += tokens + limits.overhead_tokens
    for piece in pieces:
        assert {numbers[row] + prompt for row in piece.rows} == {piece.prompt}
        assert piece.longest == max(lengths[row] for row in piece.rows)
        assert len(piece.rows) == 1 or len(piece.rows) * piece.longest + piece.prompt <= budget
    assert cut.cost == cost


@pytest.mark.parametrize("packed", [False, True])
def test_a_limit_in_rows(packed: bool) -> None:
    groups = groups_of([5, 1, 9, 2, 2], MicroLimits(max_tokens=1, max_rows=2, packed=packed))
    assert [len(group) for group in groups] == [1, 2, 2]
    assert groups[0] == [2]


def test_nothing_to_run() -> None:
    for share in (False, True):
        layout = RowLayout(random_batch([(3, 0), (2, 0)], 9), "response_mask")
        assert layout.micro_batches(None, MicroLimits(max_tokens=8, share_prompts=share)).batches == []


@pytest.mark.parametrize("shape", ["rows", "packed", "shared"])
@pytest.mark.parametrize("budget", [1, 20, 1000])
def test_every_trained_token_is_predicted_once_from_the_tokens_before_it(
    shape: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.workers.micro_batches.sum_over_ranks", lambda costs: [costs[0], 0.0])
    batch = random_batch(LENGTHS, 50, seed=3, rollouts=2)
    limits = MicroLimits(budget, packed=shape == "packed", share_prompts=shape == "shared", overhead_tokens=2)
    micros = RowLayout(batch, "response_mask").micro_batches(None, limits)
    assert micros.shared is (shape == "shared")
    seen = torch.zeros_like(batch.batch["response_mask"])
    for micro in micros.batches:
        local, offsets = micro.mask.nonzero(as_tuple=True)
        assert len(local) == len(micro.sources) == len(micro.labels)
        for i, (row, offset) in enumerate(zip(local.tolist(), offsets.tolist(), strict=True)):
            global_row = int(micro.rows[row])
            whole = batch.batch["input_ids"][global_row][batch.batch["attention_mask"][global_row].bool()]
            predicted = (
                int(batch.batch["attention_mask"][global_row, : -batch.batch["responses"].shape[1]].sum()) + offset
            )
            assert tokens_read(micro, row, int(micro.sources[i])) == whole[:predicted].tolist()
            assert int(micro.labels[i]) == int(whole[predicted])
            seen[global_row, offset] += 1
    assert torch.equal(seen, batch.batch["response_mask"])


def tokens_read(micro: MicroBatch, row: int, source: int) -> list[int]:
    """Every token that the hidden state at `source` has seen."""
    flat: list[int] = micro.input_ids.flatten().tolist()
    if micro.kernel_args:
        starts = micro.kernel_args["cu_seq_lens_q"]
        assert isinstance(starts, torch.Tensor)
        return flat[int(starts[row]) : source + 1]
    start = row * micro.input_ids.shape[1]
    if micro.prompts is None:
        return flat[start : source + 1]
    owner = int(micro.prompts.owners[row])
    prompt: list[int] = micro.prompts.input_ids[owner, : int(micro.prompts.lengths[owner])].tolist()
    inside_prompts = micro.prompts.input_ids.numel()
    if source < inside_prompts:
        assert source == owner * micro.prompts.input_ids.shape[1] + len(prompt) - 1
        return prompt
    return prompt + flat[start : source - inside_prompts + 1]


def test_prompts_are_shared_only_where_it_saves_tokens() -> None:
    limits = MicroLimits(max_tokens=1000, share_prompts=True)
    rollouts = RowLayout(random_batch([(30, 5)] * 8, 50, rollouts=8), "response_mask").micro_batches(None, limits)
    assert rollouts.shared
    (micro,) = rollouts.batches
    assert micro.prompts is not None
    assert micro.prompts.input_ids.shape == (1, 30)
    strangers = RowLayout(random_batch([(30, 5)] * 8, 50), "response_mask").micro_batches(None, limits)
    assert not strangers.shared


def test_packed_positions_restart_with_each_run() -> None:
    layout = RowLayout(random_batch([(2, 3), (1, 2)], 9), "response_mask")
    (micro,) = layout.micro_batches(None, MicroLimits(max_tokens=100, packed=True)).batches
    assert micro.position_ids is not None
    assert micro.position_ids.tolist() == [[0, 1, 0, 1, 2, 3]]
    assert micro.kernel_args["max_length_q"] == 4


def test_little_padding_on_realistic_lengths() -> None:
    draw = np.random.default_rng(0)
    responses = np.clip(draw.lognormal(4.0, 1.0, 256), 1, 2000).astype(int)
    batch = random_batch([(20, int(r)) for r in responses], 9)
    layout = RowLayout(batch, "response_mask")
    micros = layout.micro_batches(None, MicroLimits(max_tokens=4096)).batches
    computed = sum(micro.input_ids.numel() for micro in micros)
    assert computed < 1.15 * int(layout.run_lengths.sum())
    assert len(micros) < 30


def test_spread_puts_values_back_and_keeps_the_gradient() -> None:
    layout = RowLayout(random_batch([(2, 4), (2, 2)], 9, seed=1), "response_mask")
    (micro,) = layout.micro_batches(None, MicroLimits(max_tokens=100)).batches
    values = torch.arange(1.0, len(micro.labels) + 1, requires_grad=True)
    grid = micro.spread(values)
    assert torch.equal(grid[micro.mask], values)
    assert not grid[~micro.mask].any()
    grid.sum().backward()
    assert torch.equal(values.grad, torch.ones_like(values))


def test_wrong_padding_side_is_refused() -> None:
    batch = random_batch([(2, 3), (4, 3)], 9)
    batch.batch["attention_mask"][0, :4] = torch.tensor([1, 1, 0, 0])
    with pytest.raises(DataProtoError, match="padded on the left"):
        RowLayout(batch, "response_mask")


def test_columns_of_other_shapes_are_refused() -> None:
    batch = random_batch([(2, 3), (4, 3)], 9)
    tensors = {**batch.batch, "response_mask": batch.batch["response_mask"][:, :-1]}
    with pytest.raises(DataProtoError, match="do not fit together"):
        RowLayout(DataProto(tensors), "response_mask")
