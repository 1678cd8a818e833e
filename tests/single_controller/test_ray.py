"""The Ray backend with real actors and gloo groups: two ranks, and several pools whose groups compute together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray
import torch
from echo_worker import EchoWorker

from agentrl.data_proto import DataProto
from agentrl.errors import AgentRLError, CheckpointError, ConfigError, WorkerError
from agentrl.single_controller import ResourcePool, WorkerGroup, create_worker_group
from agentrl.single_controller.ray_placement import free, reserve
from agentrl.single_controller.ray_runtime import RaySession, init_ray

pytestmark = pytest.mark.usefixtures("ray_session")


def is_rank(process: psutil.Process) -> bool:
    try:
        return process.status() != "zombie" and "RankHost" in process.name()
    except psutil.NoSuchProcess:
        return False


def rank_processes() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True) if is_rank(child)}


def two_ranks(**options: float) -> WorkerGroup:
    return create_worker_group("ray", ResourcePool([2], threads_per_rank=1), EchoWorker, **options)


@pytest.fixture(scope="module")
def group(ray_session: RaySession) -> Iterator[WorkerGroup]:
    """Two ranks that add 1, and leave no process."""
    with two_ranks(offset=1.0) as ranks:
        yield ranks
        pids = {where["pid"] for where in ranks.where()}
    assert not pids & rank_processes()


def test_two_ranks_compute_together(group: WorkerGroup) -> None:
    where = group.where()
    assert [(w["rank"], w["world"], w["local"], w["threads"]) for w in where] == [(0, 2, 0, 1), (1, 2, 1, 1)]
    assert len(set(group.environment("MASTER_PORT"))) == 1
    assert group.environment("RANK") == ["0", "1"]
    assert group.join() == [3.0, 3.0]
    assert group.only_zero(7) == (0, 7)
    assert group.first(7) == (0, 7)
    assert group.first_of_all([2, 3, 4], scale=5) == (0, [10, 15, 20])
    future = group.first_of_rows(DataProto({"x": torch.zeros(3)}))
    assert future.get().batch["y"].tolist() == [0, 0, 0]
    assert group.all_of_them(7) == [(0, 7), (1, 7)]
    assert group.each([1, 2], [10, 10]) == [10, 21]

    data = DataProto({"x": torch.arange(5.0)}, {"name": list("abcde")}, {"step": 3})
    result = group.add(data, extra=0.5)
    assert result.batch["y"].tolist() == [1.5, 2.5, 3.5, 4.5, 5.5]
    assert result.non_tensor_batch["who"].tolist() == ["a@0", "b@0", "c@0", "d@1", "e@1"]
    assert result.meta_info == {"step": 3, "metrics": {"rows": 2.5, "rank/max": 1.0, "rank/min": 0.0}}

    data.meta_info["rank_partitions"] = [[4], [1, 0, 3, 2]]
    balanced = group.add(data, extra=0.5)
    assert balanced.batch["y"].tolist() == [1.5, 2.5, 3.5, 4.5, 5.5]
    assert balanced.non_tensor_batch["who"].tolist() == ["a@1", "b@1", "c@1", "d@1", "e@0"]
    assert data.batch["x"].tolist() == [0, 1, 2, 3, 4]

    assert group.count(data[:1].select(meta_info_keys=[])) == [1, 0]
    assert group.size_of(data) == [5, 5]
    assert group.metrics_only(data).meta_info["metrics"] == {"sum": 5.0}

    started = time.monotonic()
    future = group.slow(2.0)
    assert not future.done()
    assert time.monotonic() - started < 1.8
    assert future.get() == [0, 1]
    assert future.done()
    group.check()


def test_large_batches_arrive_whole_and_writable(group: WorkerGroup) -> None:
    x = torch.randn(64, 5000)
    result = group.add(DataProto({"x": x}, {"name": ["a"] * 64}))
    assert torch.equal(result.batch["y"], x + 1.0)
    result.batch["y"] += 1


def test_errors_of_a_rank(group: WorkerGroup) -> None:
    with pytest.raises(CheckpointError, match=r"^disk full") as caught:
        group.fail(1, "user")
    assert "raised in rank 1 of 2 (EchoWorker), fail" in "".join(caught.value.__notes__)
    with pytest.raises(WorkerError, match=r"^rank 1 of 2 \(EchoWorker\) failed in fail: KeyError: 'missing'"):
        group.fail(1, "bug")
    assert group.only_zero(1) == (0, 1), "an error that every rank survived leaves the group usable"


def test_a_killed_rank_is_named_at_once_though_the_other_waits_for_it() -> None:
    group = two_ranks()
    group.join()
    started = time.monotonic()
    with pytest.raises(WorkerError, match=r"^rank 1 of 2 \(EchoWorker\) died in fail: its process was killed"):
        group.fail(1, "kill")
    assert time.monotonic() - started < 15
    with pytest.raises(WorkerError, match="rank 1 of 2"):
        group.check()
    with pytest.raises(WorkerError, match="rank 1 of 2"):
        group.where()
    group.shutdown()


def test_an_error_while_the_other_rank_hangs_is_raised_soon() -> None:
    with two_ranks() as group:
        group.join()
        started = time.monotonic()
        with pytest.raises(WorkerError, match=r"rank 0 of 2 .* KeyError"):
            group.fail(0, "hang")
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("fail", "error", "message"),
    [
        ("config", ConfigError, r"^bad offset 2\.0"),
        ("bug", WorkerError, r"^rank \d of 2 \(EchoWorker\) failed in __init__: ZeroDivisionError: in init"),
    ],
)
def test_errors_of_the_constructor(fail: str, error: type[AgentRLError], message: str) -> None:
    before = rank_processes()
    with pytest.raises(error, match=message):
        create_worker_group("ray", ResourcePool([2]), EchoWorker, 2.0, fail=fail)
    assert rank_processes() <= before


@pytest.mark.slow
def test_groups_on_one_pool_share_its_gpus_and_give_them_back() -> None:
    pool = ResourcePool([2], use_gpu=True, max_colocate=2)
    with create_worker_group("ray", pool, EchoWorker) as actor:
        with create_worker_group("ray", pool, EchoWorker) as critic:
            visible = actor.environment("CUDA_VISIBLE_DEVICES")
            assert sorted(visible) == ["0", "1"]
            assert critic.environment("CUDA_VISIBLE_DEVICES") == visible
        assert ray.available_resources().get("GPU", 0) == 0
    deadline = time.monotonic() + 20
    while ray.available_resources().get("GPU", 0) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_ranks_on_two_machines_are_placed_machine_by_machine() -> None:
    with create_worker_group("ray", ResourcePool([1, 1]), EchoWorker) as group:
        assert [(w["rank"], w["local"]) for w in group.where()] == [(0, 0), (1, 0)]
        assert group.join() == [3.0, 3.0]


def test_a_second_session_uses_the_connection_and_leaves_it_alone(ray_session: RaySession) -> None:
    assert ray_session.private
    with init_ray(num_cpus=1) as second:
        assert not second.private
    assert ray.is_initialized()


@pytest.fixture(scope="module")
def groups(group: WorkerGroup) -> Iterator[list[WorkerGroup]]:
    """Two ranks in a pool, and one in another."""
    with create_worker_group("ray", ResourcePool([1], threads_per_rank=1), EchoWorker) as one:
        yield [group, one]


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
