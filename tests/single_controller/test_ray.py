"""The Ray backend with real actors and a gloo group of two ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil
import pytest
import torch
from echo_worker import EchoWorker

from agentrl.data_proto import DataProto
from agentrl.errors import AgentRLError, CheckpointError, ConfigError, WorkerError
from agentrl.single_controller import ResourcePool, WorkerGroup, create_worker_group
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
    ("fail", "ranks", "error", "message"),
    [
        ("config", 1, ConfigError, r"^bad offset 2\.0"),
        ("bug", 2, WorkerError, r"^rank \d of 2 \(EchoWorker\) failed in __init__: ZeroDivisionError: in init"),
    ],
)
def test_errors_of_the_constructor(fail: str, ranks: int, error: type[AgentRLError], message: str) -> None:
    before = rank_processes()
    with pytest.raises(error, match=message):
        create_worker_group("ray", ResourcePool([ranks]), EchoWorker, 2.0, fail=fail)
    assert rank_processes() <= before


@pytest.mark.slow
def test_groups_on_one_pool_share_its_gpus_and_give_them_back() -> None:
    import ray

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
    import ray

    assert ray.is_initialized()
