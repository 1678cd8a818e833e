"""Several pools on Ray: groups in different pools compute at the same time, a call can wait for another group's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from echo_worker import EchoWorker

from agentrl.single_controller import ResourcePool, WorkerGroup, create_worker_group

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture
def groups() -> Iterator[list[WorkerGroup]]:
    """Two ranks in a pool, and one in another."""
    made = [create_worker_group("ray", ResourcePool([ranks], threads_per_rank=1), EchoWorker) for ranks in (2, 1)]
    yield made
    for group in made:
        group.shutdown()


def test_groups_of_different_sizes_compute_at_the_same_time(groups: list[WorkerGroup], tmp_path: Path) -> None:
    """Each has a process group of its own."""
    two, one = groups
    assert (two.join(), one.join()) == ([3.0, 3.0], [1.0])
    futures = [two.submit("meet", str(tmp_path), "two", "one"), one.submit("meet", str(tmp_path), "one", "two")]
    assert [future.get() for future in futures] == [[True, True], [True]]


def test_a_call_begins_when_those_of_other_groups_have_ended(groups: list[WorkerGroup], tmp_path: Path) -> None:
    two, one = groups
    log = str(tmp_path / "log")
    first = one.submit("write", log, "first", seconds=0.5)
    second = two.submit_after([one], "write", log, "second")
    third = one.submit_after([two], "write", log, "third")
    for future in (third, second, first):
        future.get()
    lines = Path(log).read_text().splitlines()
    assert lines[:2] == ["first begins", "first ends"]
    assert sorted(lines[2:6]) == ["second begins"] * 2 + ["second ends"] * 2
    assert lines[6:] == ["third begins", "third ends"]
