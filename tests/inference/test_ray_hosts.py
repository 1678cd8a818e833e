"""Hosts as Ray actors: made-up GPUs, two machines on this one, a scripted server that records how it was started."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
import torch
import torch.distributed as dist
from fake_sglang import make_python, starts_of
from machines import Machines, machines

from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError, EngineUnavailable, WorkerError
from agentrl.inference import ray_hosts
from agentrl.inference.fleet import EngineFleet
from agentrl.inference.ray_hosts import ray_places, visible_here
from agentrl.single_controller import ResourcePool, Worker, create_worker_group, register
from agentrl.single_controller.ray_machines import alive
from agentrl.single_controller.ray_placement import acquire, free, reserve
from agentrl.single_controller.ray_runtime import init_ray
from agentrl.trainer.engine_places import reserve_places
from agentrl.trainer.pools import make_pools

# In `make test` engines on two machines are those of tests/e2e/test_machine_lost.py.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Machines]:
    """The first machine has 4 GPUs, the second 2; both are only numbers."""
    has = {"num_cpus": 1, "num_gpus": 4}, {"num_cpus": 1, "num_gpus": 2}
    with machines(*has) as cluster, init_ray(address=cluster.address):
        yield cluster


def config_of(folder: Path, model: Path, device: str, **server: Any) -> RunConfig:
    config = {
        "actor_rollout_ref": {
            "model": {"path": str(model)},
            "rollout": {"name": "sglang", "server": {"python": str(make_python(folder)), **server}},
        },
        "trainer": {"device": device, "backend": "ray", "seed": 0, "default_local_dir": str(folder / "run")},
    }
    return RunConfig.model_validate(config)


def until(happened: Callable[[], Any], timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def gpus_of_ranks(pool: ResourcePool) -> list[str]:
    """What the actors of ranks see."""
    task = ray.remote(max_calls=0)(visible_here)
    options = acquire(pool)
    for each in options:  # of actors
        del each["max_restarts"], each["max_task_retries"]
    return [name for names in ray.get([task.options(**each).remote() for each in options]) for name in names]


def test_an_engine_shares_the_gpus_of_two_ranks(
    cluster: Machines, tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a bundle of each, and sees both; also after the process of its host has died.

    Once their machine is lost there is no room for it, and the fleet still stops.
    """
    config = config_of(tmp_path, tiny_model_dir, "cuda", launch=1)
    config.actor_rollout_ref.rollout.tensor_model_parallel_size = config.trainer.n_gpus_per_node = 2
    pool = make_pools(config)["actor"]
    places = reserve_places(config, {"actor": pool})
    with EngineFleet.start(config, make_places=places) as fleet:
        of_ranks = gpus_of_ranks(pool)
        ray.kill(fleet._places[0]._actor)  # type: ignore[attr-defined]
        until(lambda: len(fleet.tend()) == 1)
        assert fleet.restarts == 1
        ray.kill(fleet._places[0]._actor)  # type: ignore[attr-defined]
        monkeypatch.setattr(ray_hosts, "is_lost", lambda node: True)
        with pytest.raises(EngineUnavailable, match=r"no engine answers its health check: .*its host died on machine"):
            until(lambda: not fleet.tend())
    free([pool])
    assert len(set(of_ranks)) == 2
    assert len(starts_of(tmp_path)) == 2
    for start in starts_of(tmp_path):
        assert start["env"]["CUDA_VISIBLE_DEVICES"] == ",".join(of_ranks)
        assert start["flags"]["--tp-size"] == "2"
        assert "--base-gpu-id" not in start["argv"]


def test_split_engines_have_gpus_of_their_own(cluster: Machines, tmp_path: Path, tiny_model_dir: Path) -> None:
    config = config_of(tmp_path, tiny_model_dir, "cuda", launch=2)
    pool = ResourcePool([2], use_gpu=True)
    bundles = reserve({"actor": pool}, engine_gpus=[2, 2])
    with EngineFleet.start(config, make_places=lambda c, logs: ray_places(c, logs, dict(enumerate(bundles)))) as fleet:
        of_ranks = gpus_of_ranks(pool)
        hosts = [address.rsplit(":", 1)[0] for address in fleet.addresses]
    free([pool])
    for each in bundles:
        each.free()
    taken = [
        (host, gpu)
        for host, start in zip(hosts, starts_of(tmp_path), strict=True)
        for gpu in start["env"]["CUDA_VISIBLE_DEVICES"].split(",")
    ]
    assert len(set(taken)) == 4
    on_first = {gpu for host, gpu in taken if "127.0.0.2" not in host}
    assert len(of_ranks) == 2
    if len(on_first) == 2:  # the other engine is on the second machine, the ranks are beside this one
        assert on_first | set(of_ranks) == {"0", "1", "2", "3"}


def test_pools_and_engines_that_are_too_large_together_are_counted(cluster: Machines) -> None:
    pool = ResourcePool([4], use_gpu=True)
    with pytest.raises(
        ConfigError, match=r"4 ranks and 2 engines need 8 GPUs \(main 4 \+ engines 4\), but the Ray cluster has 6"
    ):
        reserve({"main": pool}, engine_gpus=[2, 2])
    with pytest.raises(
        ConfigError, match=r"needs a machine with 5 GPUs, but the largest of the Ray cluster has 4.*tensor"
    ):
        reserve({}, engine_gpus=[5])


def test_a_python_that_a_machine_lacks_is_named_with_the_machine(
    cluster: Machines, tmp_path: Path, tiny_model_dir: Path
) -> None:
    config = config_of(tmp_path, tiny_model_dir, "cpu", launch=2)
    config.actor_rollout_ref.rollout.server.python = str(tmp_path / "none" / "python")
    with pytest.raises(
        ConfigError, match=r"server\.python: no program .*/none/python is found.*on machine \d+\.\d+\.\d+\.\d+"
    ):
        EngineFleet.start(config, make_places=ray_places)


class Sum(Worker):
    """A rank that waits for the others."""

    @register()
    def total(self, pause_s: float = 0.0) -> float:
        """The sum of all ranks' numbers + 1; rank 1 pauses before."""
        self.init_process_group()
        time.sleep(pause_s * self.rank)
        value = torch.tensor(self.rank + 1.0)
        dist.all_reduce(value)
        return float(value)


def test_a_machine_is_lost_with_an_engine_and_a_rank(
    cluster: Machines, tmp_path: Path, tiny_model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine is started elsewhere, the call of the ranks ends and names the machine. The cluster's last test."""
    config = config_of(tmp_path, tiny_model_dir, "cpu", launch=2)
    ranks = create_worker_group("ray", ResourcePool([1, 1], threads_per_rank=1), Sum)
    with ranks as group, EngineFleet.start(config, make_places=ray_places) as fleet:
        assert group.total() == [3.0, 3.0]  # type: ignore[attr-defined]
        first, second = fleet.addresses
        here = alive()[0]["NodeManagerAddress"]
        assert first.startswith(f"http://{here}:")
        assert second.startswith("http://127.0.0.2:")
        assert httpx.get(f"{second}/health", trust_env=False).status_code == 200
        assert all(start["env"]["OMP_NUM_THREADS"] == "1" for start in starts_of(tmp_path))  # as this process has it
        call = group.submit("total", 600.0)
        cluster.lose(1)
        with pytest.raises(WorkerError, match=r"^rank \d of 2 \(Sum\) died in total: machine 127\.0\.0\.2 \(Ray node"):
            call.get()
        until(lambda: len(fleet.tend()) == 1)
        until(lambda: len(fleet.tend()) == 2)
        assert fleet.restarts == 1
        assert fleet.addresses[0] == first
        assert fleet.addresses[1].startswith(f"http://{here}:")
        assert "engine 1 is lost: machine 127.0.0.2 (Ray node " in caplog.text
        assert f"Starting it again on machine {here}" in caplog.text
