"""The loader's order is seeded, and its cursor resumes exactly wherever it was taken."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from dataset_rows import row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.config.data import DataConfig
from agentrl.data.dataset import RLHFDataset
from agentrl.data.loader import StatefulLoader, batches
from agentrl.errors import ConfigError


@pytest.fixture
def dataset(parquet: Callable[..., str]) -> RLHFDataset:
    files = [parquet(*map(row, range(7)), name="a.parquet"), parquet(*map(row, range(7, 10)), name="b.parquet")]
    return RLHFDataset(files, DataConfig())


def take(loader: StatefulLoader, count: int) -> list[list[int]]:
    return [[sample.index for sample in loader.next_batch()] for _ in range(count)]


def flat(taken: list[list[int]]) -> list[int]:
    return [index for batch in taken for index in batch]


def test_without_shuffle_rows_come_in_order_and_the_last_part_batch_is_dropped(dataset: RLHFDataset) -> None:
    loader = StatefulLoader(dataset, 4, shuffle=False, seed=1)
    assert loader.steps_per_epoch == 2
    assert take(loader, 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    assert loader.epoch == 1


def test_shuffled_epochs_differ_and_hold_each_row_once(dataset: RLHFDataset) -> None:
    loader = StatefulLoader(dataset, 5, shuffle=True, seed=1)
    first, second = (flat(take(loader, 2)) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second != list(range(10))
    assert take(StatefulLoader(dataset, 5, shuffle=True, seed=1), 2) == [first[:5], first[5:]]
    assert take(StatefulLoader(dataset, 5, shuffle=True, seed=2), 2) != [first[:5], first[5:]]


def test_the_order_is_the_same_on_every_machine(dataset: RLHFDataset) -> None:
    assert take(StatefulLoader(dataset, 5, shuffle=True, seed=1), 1) == [[2, 9, 8, 3, 6]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 10),
    before=st.integers(0, 25),
    shuffle=st.booleans(),
    weights=st.sampled_from([None, [1, 1], [0, 1], [5, 0.5]]),
)
def test_resume_continues_the_same_sequence(
    dataset: RLHFDataset, batch: int, before: int, shuffle: bool, weights: Sequence[float] | None
) -> None:
    loader = StatefulLoader(dataset, batch, shuffle, 3, weights)
    take(loader, before)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = StatefulLoader(dataset, batch, shuffle, 3, weights)
    resumed.load_state_dict(state)
    assert resumed.epoch == loader.epoch
    assert take(resumed, 12) == take(loader, 12)
    assert resumed.state_dict() == loader.state_dict()


def test_resume_with_another_batch_size_goes_on_at_the_same_row(dataset: RLHFDataset) -> None:
    loader = StatefulLoader(dataset, 2, shuffle=True, seed=1)
    take(loader, 2)
    resumed = StatefulLoader(dataset, 3, shuffle=True, seed=1)
    resumed.load_state_dict(loader.state_dict())
    assert take(resumed, 1)[0] == flat(take(loader, 2))[:3]


def test_resume_with_other_rows_or_another_order_is_refused(dataset: RLHFDataset) -> None:
    state = StatefulLoader(dataset, 2, shuffle=True, seed=1).state_dict()
    with pytest.raises(ConfigError, match=r"data\.seed: the checkpoint was made with 1, this run has 2"):
        StatefulLoader(dataset, 2, shuffle=True, seed=2).load_state_dict(state)
    with pytest.raises(ConfigError, match=r"data\.rows"):
        StatefulLoader(dataset, 2, shuffle=True, seed=1).load_state_dict({**state, "rows": 9})


def test_weights_decide_how_often_a_file_is_drawn(dataset: RLHFDataset) -> None:
    loader = StatefulLoader(dataset, 10, shuffle=True, seed=1, weights=[1, 3])
    drawn = Counter(index for batch in take(loader, 60) for index in batch)
    from_second = sum(count for index, count in drawn.items() if index >= 7)
    assert from_second / 600 == pytest.approx(0.75, abs=0.05)
    # Passes through a file are whole: no row of a file is ever two draws ahead of another.
    assert max(drawn[i] for i in range(7)) - min(drawn[i] for i in range(7)) <= 1


def test_too_few_rows_and_bad_weights(dataset: RLHFDataset) -> None:
    with pytest.raises(ConfigError, match=r"data\.train_batch_size: got 11, but there are only 10 rows"):
        StatefulLoader(dataset, 11, shuffle=True, seed=1)
    for weights in ([1], [1, -1], [0, 0], [float("nan"), 1]):
        with pytest.raises(ConfigError, match=r"data\.dataset_weights"):
            StatefulLoader(dataset, 2, True, 1, weights)


def test_validation_batches_hold_every_row_once(dataset: RLHFDataset) -> None:
    assert [[s.index for s in batch] for batch in batches(dataset, 4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [len(batch) for batch in batches(dataset, None)] == [10]
