"""Workers on tiny models: one rank in this process, two on a private Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentrl.config.root import RunConfig
from agentrl.single_controller import ResourcePool, WorkerGroup, create_worker_group
from agentrl.single_controller.ray_runtime import RaySession, init_ray
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker

MakeConfig = Callable[..., RunConfig]
MakeGroup = Callable[..., WorkerGroup]
MakeActor = Callable[..., ActorRolloutRefWorker]


@pytest.fixture(scope="module")
def ray_session() -> Iterator[RaySession]:
    with init_ray(num_cpus=2) as session:
        yield session


@pytest.fixture
def make_group(ray_session: RaySession) -> Iterator[MakeGroup]:
    """A ready group of one rank in this process, or of two on Ray."""
    groups: list[WorkerGroup] = []

    def make(ranks: int, worker: type, *args: object) -> WorkerGroup:
        pool = ResourcePool((ranks,), threads_per_rank=1)
        group = create_worker_group("local" if ranks == 1 else "ray", pool, worker, *args)
        groups.append(group)
        group.init_model(10)
        return group

    yield make
    for group in groups:
        group.shutdown()


@pytest.fixture
def make_config(tiny_model_dir: Path) -> MakeConfig:
    """A run on the tiny model; keyword arguments are fields of the actor section."""

    def make(path: Path | None = None, **actor_fields: object) -> RunConfig:
        config = RunConfig()
        policy = config.actor_rollout_ref
        policy.model.path = str(path or tiny_model_dir)
        policy.actor.optim.lr = 1e-4
        policy.actor.ppo_mini_batch_size = 1000
        for name, value in actor_fields.items():
            setattr(policy.actor, name, value)
        return config

    return make


@pytest.fixture
def make_actor(make_config: MakeConfig) -> Iterator[MakeActor]:
    """An actor of one rank in this process, ready to use."""
    workers: list[ActorRolloutRefWorker] = []

    def make(config: RunConfig | None = None, role: str = "actor", **actor_fields: object) -> ActorRolloutRefWorker:
        worker = ActorRolloutRefWorker(config or make_config(**actor_fields), role)
        workers.append(worker)
        worker.init_model(10)
        return worker

    yield make
    for worker in workers:
        worker.close()
