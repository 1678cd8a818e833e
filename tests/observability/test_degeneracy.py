"""Degenerate text is measured from ids, over sampled tokens only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.data_proto import DataProto
from agentrl.observability.degeneracy import degeneracy_metrics, longest_run, repetition, same_text

ids = st.lists(st.integers(0, 200_000), max_size=60).map(lambda given: np.array(given, np.int64))
few_ids = st.lists(st.integers(0, 2), max_size=60).map(lambda given: np.array(given, np.int64))


@given(st.one_of(ids, few_ids))
def test_repetition_counts_four_grams(given: np.ndarray) -> None:
    grams = [tuple(given[place : place + 4]) for place in range(len(given) - 3)]
    wanted = 1 - len(set(grams)) / len(grams) if len(grams) > 1 else 0.0
    assert repetition(given) == pytest.approx(wanted)


@given(few_ids)
def test_the_longest_run(given: np.ndarray) -> None:
    best = run = 0
    for place, token in enumerate(given):
        run = run + 1 if place and token == given[place - 1] else 1
        best = max(best, run)
    assert longest_run(given) == best


def test_text_of_another_prompt() -> None:
    texts = [np.array(text) for text in ([1, 2], [1, 2], [1, 2], [3], [], [4])]
    assert same_text(texts, ["a", "a", "b", "b", "b", "c"]) == 0.5  # the same prompt may get one answer twice
    assert same_text(texts[:2], ["a", "a"]) == 0.0


def test_only_sampled_tokens_count() -> None:
    responses, versions = torch.full((3, 40), 7), torch.full((3, 40), -1)
    versions[0, :20] = 3  # twenty times the same
    responses[1, :20], versions[1, :10] = torch.arange(20), 3  # what follows was not sampled
    responses[2], versions[2, ::4] = torch.arange(40), 3
    uid = np.array(["a", "b", "c"], dtype=object)
    batch = DataProto({"responses": responses, "weight_versions": versions}, {"uid": uid})
    assert degeneracy_metrics(batch) == {
        "health/repetition": pytest.approx((1 - 1 / 17) / 3),
        "health/token_runs": pytest.approx(1 / 3),
        "health/same_text": 0.0,
    }
    assert degeneracy_metrics(batch[:0]) == {}
