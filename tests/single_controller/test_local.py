"""The local backend: one rank in this process."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from echo_worker import EchoWorker

from agentrl.data_proto import DataProto
from agentrl.errors import CheckpointError, ConfigError, DataProtoError, WorkerError
from agentrl.single_controller import ResourcePool, Worker, create_worker_group


def test_every_dispatch_mode() -> None:
    with create_worker_group("local", ResourcePool(), EchoWorker, offset=1.0) as group:
        assert group.world_size == 1
        assert group.where()[0]["world"] == 1
        assert group.only_zero(7) == (0, 7)
        assert group.first(7) == (0, 7)
        assert group.first_of_all([2, 3], scale=5) == (0, [10, 15])
        assert group.first_of_rows(DataProto({"x": torch.zeros(2)})).get().batch["y"].tolist() == [0, 0]
        assert group.all_of_them(7) == [(0, 7)]
        assert group.each([2], scale=[5]) == [10]
        result = group.add(DataProto({"x": torch.zeros(2)}, {"name": ["a", "b"]}, {"step": 3}), extra=0.5)
        assert result.batch["y"].tolist() == [1.5, 1.5]
        assert result.meta_info["step"] == 3
        future = group.slow(0.0)
        assert future.done()
        assert future.get() == [0]
        group.check()


def test_a_call_after_those_of_another_group() -> None:
    first, second = (create_worker_group("local", ResourcePool(), EchoWorker) for _ in range(2))
    assert second.submit_after([first], "only_zero", 7).get() == (0, 7)
    assert second.only_zero(first.first_of_rows(DataProto({"x": torch.ones(1)})))[1].batch["y"].tolist() == [1]
    first.shutdown()
    second.shutdown()


def test_process_group_without_network_shared_by_two_workers() -> None:
    with create_worker_group("local", ResourcePool(), EchoWorker) as first:
        with create_worker_group("local", ResourcePool(), EchoWorker) as second:
            assert first.join() == second.join() == [1.0]
        assert dist.is_initialized()
        assert first.join() == [1.0]
    assert not dist.is_initialized()


def test_a_foreign_process_group_is_named() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        worker = Worker.place(Worker.placement.__class__(rank=1, world_size=2), None)
        with pytest.raises(WorkerError, match="already rank 0 of 1"):
            worker.init_process_group()
    finally:
        dist.destroy_process_group()


def test_errors_come_as_they_are() -> None:
    with create_worker_group("local", ResourcePool(), EchoWorker) as group:
        with pytest.raises(CheckpointError, match="disk full"):
            group.fail(0, "user")
        with pytest.raises(KeyError):
            group.fail(0, "bug")
        with pytest.raises(DataProtoError):
            group.add(3)
        with pytest.raises(AttributeError, match="Did you mean 'only_zero'"):
            group.only_zerro()
        with pytest.raises(AttributeError, match="no registered method 'not_registered'"):
            group.not_registered()


def test_a_group_is_closed_once() -> None:
    group = create_worker_group("local", ResourcePool(), EchoWorker)
    group.shutdown()
    group.shutdown()
    with pytest.raises(WorkerError, match="after the group's shutdown"):
        group.where()


def test_what_local_cannot_do() -> None:
    with pytest.raises(ConfigError, match="runs one rank in this process, got 2"):
        create_worker_group("local", ResourcePool([2]), EchoWorker)
    with pytest.raises(ConfigError, match="wanted 'ray' or 'local'"):
        create_worker_group("rai", ResourcePool(), EchoWorker)  # type: ignore[arg-type]
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="the run needs a GPU"):
            create_worker_group("local", ResourcePool(use_gpu=True), EchoWorker)


def test_local_works_where_ray_cannot_be_imported() -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from agentrl.single_controller import *\n"
        "class W(Worker):\n    @register()\n    def f(self): return self.rank\n"
        "assert create_worker_group('local', ResourcePool(), W).f() == [0]\n"
        "from agentrl.errors import ConfigError\n"
        "from agentrl.single_controller.ray_runtime import init_ray\n"
        "try: init_ray()\n"
        "except ConfigError as error: assert 'trainer.backend=local' in str(error)\n"
        "else: raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_importing_the_package_does_not_import_ray() -> None:
    code = "import sys, agentrl.single_controller; raise SystemExit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
