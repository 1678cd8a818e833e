"""Several pools on Ray: groups in different pools compute at the same time, a call can wait for another group's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import torch
from echo_worker import EchoWorker

from agentrl.data_proto import DataProto
from agentrl.errors import ConfigError
from agentrl.single_controller import ResourcePool, WorkerGroup, create_worker_group
from agentrl.single_controller.ray_placement import free, reserve
from agentrl.single_controller.ray_runtime import RaySession

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture(scope="module")
def groups(ray_session: RaySession) -> Iterator[list[WorkerGroup]]:
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


def test_the_future_of_one_group_is_an_argument_of_another(groups: list[WorkerGroup]) -> None:
    two, one = groups
    rows = two.first_of_rows(DataProto({"x": torch.arange(3.0)}))  # not blocking
    assert one.only_zero(value=rows)[1].batch["y"].tolist() == [0, 1, 2]


def gpus(*process_on_nodes: int) -> ResourcePool:
    return ResourcePool(process_on_nodes, use_gpu=True)


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ({"main": gpus(3)}, "3 ranks need 3 GPUs, but the Ray cluster has 2: lower trainer.nnodes"),
        (
            {"main": gpus(2), "critic": gpus(1)},
            r"3 ranks need 3 GPUs \(main 2 \+ critic 1\), but the Ray cluster has 2",
        ),
        ({"main": gpus(1), "cpu": ResourcePool([2, 2])}, "4 ranks need 4 CPUs, but the Ray cluster has 2"),
    ],
)
def test_pools_that_are_too_large_together_are_counted(pools: dict[str, ResourcePool], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reserve(pools)
    assert not any(pool.shared for pool in pools.values())


def test_a_machine_that_is_too_small_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [{"Alive": True, "Resources": {"GPU": 2.0}}, {"Alive": True, "Resources": {"GPU": 1.0}}]
    monkeypatch.setattr(ray, "nodes", lambda: [*two, {"Alive": False, "Resources": {"GPU": 8.0}}])
    with pytest.raises(
        ConfigError, match="critic needs a machine with 3 GPUs, but the largest of the Ray cluster has 2"
    ):
        reserve({"critic": gpus(3)})


def test_a_group_alone_says_so_too() -> None:
    with pytest.raises(ConfigError, match="3 ranks need 3 GPUs, but the Ray cluster has 2"):
        create_worker_group("ray", gpus(3), EchoWorker)


@pytest.mark.slow
def test_each_pool_has_gpus_of_its_own_and_gives_them_back() -> None:
    pools = {"main": gpus(1), "critic": gpus(1), "cpu": ResourcePool()}
    reserve(pools)
    with create_worker_group("ray", pools["main"], EchoWorker) as actor:
        with create_worker_group("ray", pools["critic"], EchoWorker) as critic:
            visible = [*actor.environment("CUDA_VISIBLE_DEVICES"), *critic.environment("CUDA_VISIBLE_DEVICES")]
            assert sorted(visible) == ["0", "1"]
        reserve({"another": pools["main"]})  # has its places
    free(list(pools.values()))
    reserve({"both": (both := gpus(2))})  # it waits until they are free again
    free([both])
