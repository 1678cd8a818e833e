"""The only writer of tokens: what it accepts, what it refuses, and what always holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import EngineError, TokenStreamError
from agentrl.testing.loops import sampled
from agentrl.trajectory import NO_VERSION, Trajectory
from agentrl.types import GenerationOutput


def trajectory(response_length: int = 100) -> Trajectory:
    return Trajectory([1, 2], response_length)


def test_an_observation_counts_once_a_sampled_token_follows() -> None:
    stream = trajectory()
    stream.append_completion(sampled([3, 4], version=1))
    assert stream.append_observation([5, 6, 7])
    assert (stream.response_ids, stream.context_ids, stream.remaining) == ([3, 4], [1, 2, 3, 4, 5, 6, 7], 95)
    stream.append_completion(sampled([8], version=2))
    assert stream.response_ids == [3, 4, 5, 6, 7, 8]
    assert stream.response_mask == [1, 1, 0, 0, 0, 1]
    assert stream.rollout_log_probs == [-0.5, -0.5, 0.0, 0.0, 0.0, -0.5]
    assert stream.weight_versions == [1, 1, NO_VERSION, NO_VERSION, NO_VERSION, 2]


def test_an_observation_must_leave_room_for_a_token() -> None:
    stream = trajectory(response_length=4)
    stream.append_completion(sampled([3]))
    assert not stream.append_observation([5, 6, 7])
    assert stream.context_ids == [1, 2, 3]
    assert stream.append_observation([5, 6])
    assert stream.remaining == 1


def test_nothing_follows_a_turn_that_was_cut() -> None:
    stream = trajectory()
    stream.append_completion(sampled([3], "length"))
    with pytest.raises(TokenStreamError, match="a length limit cut the last turn"):
        stream.append_observation([4])
    with pytest.raises(TokenStreamError, match="a length limit cut the last turn"):
        stream.append_completion(sampled([4]))


def test_what_an_engine_may_not_answer() -> None:
    stream = trajectory(response_length=2)
    with pytest.raises(TokenStreamError, match="differ in length: 2, 1, 2"):
        stream.append_completion(GenerationOutput([3, 4], [-1.0], [0, 0], "stop"))
    with pytest.raises(EngineError, match="sampled 3 tokens, but only 2 were left"):
        stream.append_completion(sampled([3, 4, 5]))
    for bad in (float("nan"), float("-inf")):
        with pytest.raises(EngineError, match="not finite"):
            stream.append_completion(GenerationOutput([3], [bad], [0], "stop"))
    assert stream.response_ids == []


def test_what_cannot_be_built() -> None:
    with pytest.raises(TokenStreamError, match="at least one prompt token"):
        Trajectory([], 10)
    with pytest.raises(TokenStreamError, match="got 0, wanted at least 1"):
        Trajectory([1], 0)
    with pytest.raises(TokenStreamError, match="needs a sampled turn before it"):
        trajectory().append_observation([1])


def test_readers_get_copies() -> None:
    stream = trajectory()
    stream.append_completion(sampled([3]))
    stream.response_mask.append(1)
    stream.context_ids.clear()
    assert stream.response_mask == [1]
    assert stream.context_ids == [1, 2, 3]


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 9), max_size=6)), max_size=20), st.integers(1, 40))
def test_invariants(steps: list[tuple[bool, list[int]]], response_length: int) -> None:
    stream = trajectory(response_length)
    wanted: list[tuple[int, int]] = []
    pending: list[tuple[int, int]] = []
    for is_observation, ids in steps:
        if is_observation and wanted:
            if stream.append_observation(ids):
                pending += [(token, 0) for token in ids]
        elif not is_observation and len(ids) <= stream.remaining:
            stream.append_completion(sampled(ids))
            if ids:
                wanted += [*pending, *((token, 1) for token in ids)]
                pending = []
    assert list(zip(stream.response_ids, stream.response_mask, strict=True)) == wanted
    assert len(stream.rollout_log_probs) == len(stream.weight_versions) == len(wanted) <= response_length
    assert not wanted or stream.response_mask[-1] == 1
    assert all(
        log_prob == 0.0
        for log_prob, mask in zip(stream.rollout_log_probs, stream.response_mask, strict=True)
        if not mask
    )
