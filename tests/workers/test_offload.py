"""Tensors that leave the GPU between uses come back with equal values, and a run learns what it learns without."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from simulated_cuda import gpu_or_simulated, simulated_cuda
from torch.distributed.tensor import DTensor

from agentrl.config.root import RunConfig
from agentrl.single_controller import Placement
from agentrl.testing.batches import random_batch
from agentrl.workers import fsdp_model
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker
from agentrl.workers.residence import Residence

BATCH = random_batch([(3, 5), (7, 1), (1, 9), (4, 4), (5, 2), (2, 12), (6, 3), (3, 3)], 261, seed=1)
HERE = Path(__file__).parent


def make(model: str, offload: tuple[bool, bool], rank: int = 0, world: int = 1, role: str = "actor") -> Any:
    config = RunConfig()
    policy = config.actor_rollout_ref
    policy.model.path, policy.actor.optim.lr, policy.actor.ppo_mini_batch_size = model, 1e-3, 4
    for fsdp in (policy.actor.fsdp_config, policy.ref.fsdp_config):
        fsdp.param_offload, fsdp.optimizer_offload = offload
    worker = ActorRolloutRefWorker.place(Placement(rank, world, use_gpu=True), None, config, role)
    worker.init_model(10)
    return worker


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def places(worker: Any) -> dict[str, str]:
    """Where parameters, gradients and moments are: one kind of memory each."""
    parameters = dict(worker.model.net.named_parameters())
    state = {} if worker.model.optimizer is None else worker.model.optimizer.state_tensors()
    kinds = {
        "parameters": list(parameters.values()),
        "gradients": [p.grad for p in parameters.values() if p.grad is not None],
        "moments": [value for name, value in state.items() if name.startswith("exp_avg")],
    }
    found = {kind: {local(tensor).device.type for tensor in tensors} for kind, tensors in kinds.items() if tensors}
    assert all(len(where) == 1 for where in found.values()), found
    return {kind: where.pop() for kind, where in found.items()}


def run_worker(model: str, *, offload: bool, rank: int = 0, world: int = 1) -> dict[str, torch.Tensor]:
    """Two updates with log-probs between them, as a step takes them; the whole weights, on rank 0."""
    worker = make(model, (offload, offload), rank, world)
    at_rest = dict.fromkeys(("parameters", "moments"), "cpu" if offload else "cuda")
    rows = BATCH[list(range(rank, len(BATCH), world))]
    for _ in range(2):
        assert places(worker) == at_rest
        worker.compute_log_prob(rows)
        assert places(worker) == at_rest
        worker.keep_on_device()
        assert places(worker) == at_rest, "until its own update others, such as a critic, have the GPU"
        worker.update_actor(rows)
        assert places(worker) == {**at_rest, "parameters": "cuda"}, "moments leave when the update ends"
        weights = worker.model.full_weights()
        worker.yield_device()
    assert places(worker) == at_rest
    if world == 1:
        worker.close()
    return {name: value.clone() for name, value in weights.items()}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with gpu_or_simulated(monkeypatch):
        yield


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path) -> dict[bool, dict[str, torch.Tensor]]:
    with simulated_cuda(monkeypatch):
        return {offload: run_worker(str(tiny_model_dir), offload=offload) for offload in (False, True)}


@pytest.mark.slow
def test_one_and_two_ranks_learn_the_same_with_offloading(
    one_rank: dict[bool, dict[str, torch.Tensor]], tiny_model_dir: Path, tmp_path: Path
) -> None:
    output = tmp_path / "found"
    command = [sys.executable, str(HERE / "offload_ranks.py"), str(tiny_model_dir), str(output)]
    paths = os.pathsep.join([str(HERE), str(HERE.parent), *sys.path])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    two_ranks = torch.load(f"{output}.0")
    for found in (one_rank, two_ranks):
        assert found[False].keys() == found[True].keys()
        for name, value in found[False].items():
            torch.testing.assert_close(found[True][name], value, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("offload", [(True, False), (False, True), (True, True)])
def test_everything_comes_back_as_it_left(offload: tuple[bool, bool], gpu: None, tiny_model_dir: Path) -> None:
    worker = make(str(tiny_model_dir), offload)
    model = worker.model
    worker.keep_on_device()
    worker.update_actor(BATCH)
    for number, parameter in enumerate(model.net.parameters()):
        parameter.grad = torch.full_like(parameter, float(number))
    identities = [id(parameter) for parameter in model.net.parameters()]

    def values() -> list[torch.Tensor]:
        state = model.optimizer.state_tensors()
        tensors = [*model.net.parameters(), *(p.grad for p in model.net.parameters()), *state.values()]
        return [local(tensor.detach()).cpu().clone() for tensor in tensors]

    before, trips = values(), model.residence.trips
    worker.yield_device()
    host = {True: "cpu", False: "cuda"}
    assert places(worker) == {
        "parameters": host[offload[0]],
        "gradients": host[offload[0]],
        "moments": host[offload[1]],
    }
    with model.residence.in_use():
        model.residence.bring_moments()
        assert set(places(worker).values()) == {"cuda"}
        assert all(torch.equal(one, other) for one, other in zip(before, values(), strict=True))
    assert model.residence.trips == trips + 1
    assert [id(parameter) for parameter in model.net.parameters()] == identities
    worker.close()


def test_moments_that_leave_are_never_on_the_gpu_before_the_first_step(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an engine has its share of the GPU already, 8 bytes a weight more may not fit beside the weights."""
    begun: list[set[str]] = []

    def look(net: Any, optimizer: Any, *arguments: Any, **options: Any) -> Residence:
        moments = [value for name, value in optimizer.state_tensors().items() if name.startswith("exp_avg")]
        begun.append({local(value).device.type for value in moments})
        return Residence(net, optimizer, *arguments, **options)

    monkeypatch.setattr(fsdp_model, "Residence", look)
    with simulated_cuda(monkeypatch):
        for offload in (True, False):
            make(str(tiny_model_dir), (False, offload)).close()
    assert begun == [{"cpu"}, {"cuda"}]


def test_a_reference_is_on_the_gpu_only_in_its_pass_and_in_the_type_of_the_pass(
    gpu: None, tiny_model_dir: Path
) -> None:
    reference = make(str(tiny_model_dir), (True, True), role="ref")
    assert places(reference) == {"parameters": "cpu"}
    assert {parameter.dtype for parameter in reference.model.net.parameters()} == {torch.bfloat16}
    trips = reference.model.residence.trips
    assert reference.compute_ref_log_prob(BATCH).batch["ref_log_prob"].isfinite().all()
    assert places(reference) == {"parameters": "cpu"}
    assert reference.model.residence.trips == trips + 1
    reference.close()
