"""R3 at the engine's door: a request goes on from the last one, or it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentrl.rollout.session import Request
from agentrl.testing.loops import sampled
from agentrl.trajectory import ContextIds, Trajectory


def request(prompt_ids: list[int], sampled_ids: list[int]) -> Request:
    return Request.of(prompt_ids, sampled_ids)


@pytest.fixture
def stream() -> Trajectory:
    return Trajectory([1, 2, 3], 100)


def next_contexts(stream: Trajectory) -> Iterator[list[int]]:
    """The next request of a trajectory, as it is handed out and as a plain copy."""
    yield stream.context_ids
    yield list(stream.context_ids)


@pytest.mark.parametrize("copy", [list, lambda ids: ids])
def test_what_goes_on_is_let_through(stream: Trajectory, copy: Callable[[Any], list[int]]) -> None:
    first = request(copy(stream.context_ids), [4, 5])
    stream.append_completion(sampled([4, 5]))
    stream.append_observation([6])
    for ids in next_contexts(stream):
        assert first.is_continued_by(ids)


@pytest.mark.parametrize("copy", [list, lambda ids: ids])
def test_what_does_not_is_refused(stream: Trajectory, copy: Callable[[Any], list[int]]) -> None:
    first = request(copy(stream.context_ids), [4, 5])
    assert not first.is_continued_by(stream.context_ids)  # nothing was appended
    stream.append_completion(sampled([4, 9]))  # another turn than was sampled
    for ids in next_contexts(stream):
        assert not first.is_continued_by(ids)
    other = Trajectory([1, 2, 8], 100)
    other.append_completion(sampled([4, 5]))
    for ids in next_contexts(other):
        assert not first.is_continued_by(ids)
    same = Trajectory([1, 2, 3], 100)
    same.append_completion(sampled([4, 5]))
    for ids in next_contexts(same):
        assert first.is_continued_by(ids)


CHANGES: dict[str, Callable[[ContextIds], Any]] = {
    "append": lambda ids: ids.append(7),
    "clear": lambda ids: ids.clear(),
    "extend": lambda ids: ids.extend([7]),
    "insert": lambda ids: ids.insert(0, 7),
    "pop": lambda ids: ids.pop(0),
    "remove": lambda ids: ids.remove(1),
    "reverse": lambda ids: ids.reverse(),
    "sort": lambda ids: ids.sort(reverse=True),
    "delete": lambda ids: ids.__delitem__(0),
    "add": lambda ids: ids.__iadd__([7]),
    "repeat": lambda ids: ids.__imul__(2),
    "set": lambda ids: ids.__setitem__(0, 7),
    "slice": lambda ids: ids.__setitem__(slice(0, 2), [7]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_context_is_compared_in_full(stream: Trajectory, change: str) -> None:
    first = request(stream.context_ids, [4, 5])
    stream.append_completion(sampled([4, 5]))
    ids = stream.context_ids
    assert ids.owner is stream
    CHANGES[change](ids)
    assert ids.owner is None
    assert first.is_continued_by(ids) == (list(ids)[:5] == [1, 2, 3, 4, 5])


@pytest.mark.parametrize("change", CHANGES)
def test_a_request_that_is_changed_afterwards_still_counts(stream: Trajectory, change: str) -> None:
    ids = stream.context_ids
    for asked in (ids, ids[:]):
        first = request(asked, [4, 5])
        before = list(asked)
        if isinstance(asked, ContextIds):
            CHANGES[change](asked)
        else:
            asked.clear()
        assert first.is_continued_by([*before, 4, 5])
        assert not first.is_continued_by([0, *before[1:], 4, 5])
