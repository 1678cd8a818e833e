"""A whole run whose engine and ranks share a GPU, here a simulated one: turns, offloading, weights between them.

The engine is a process of its own, which no simulation reaches: it runs on the CPU.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import pytest
from runs import Workspace
from simulated_cuda import simulated_cuda
from torch.distributed.tensor import DTensor

from agentrl.config.machine import uses_cuda
from agentrl.config.shared_gpus import frees_engines
from agentrl.inference import engine_host
from agentrl.trainer.run import run_training
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker
from agentrl.workers.residence import Residence

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
FSDP = {"compute_dtype": "float32", "param_offload": True}
LEARNING_FSDP = {**FSDP, "optimizer_offload": True}


def test_engine_and_ranks_take_turns(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    run = workspace.run(
        "shared_gpu",
        trainer__device="cuda",
        trainer__save_freq=2,
        algorithm__adv_estimator="gae",
        algorithm__use_kl_in_reward=True,
        actor_rollout_ref__actor__fsdp_config=LEARNING_FSDP,
        actor_rollout_ref__ref__fsdp_config=FSDP,
        critic__fsdp_config=LEARNING_FSDP,
        actor_rollout_ref__rollout__dtype="float32",
    )
    launch_command = engine_host.launch_command

    def on_cpu(*args: Any) -> list[str]:
        return ["cpu" if word == "cuda" else word for word in launch_command(*args)]

    monkeypatch.setattr(engine_host, "launch_command", on_cpu)
    turns: list[tuple[str, str]] = []
    for name in ("keep", "yield_device"):
        monkeypatch.setattr(Residence, name, tell(name, getattr(Residence, name), turns))
    export_weights = ActorRolloutRefWorker.export_weights

    @wraps(export_weights)
    def export(worker: ActorRolloutRefWorker, *args: Any) -> Any:
        turns.append(("export_weights", place_of(worker.model.residence)))
        return export_weights(worker, *args)

    monkeypatch.setattr(ActorRolloutRefWorker, "export_weights", export)
    with simulated_cuda(monkeypatch) as labels:
        assert uses_cuda(run.config)
        assert frees_engines(run.config)
        run_training(run.config)
        assert labels.operations > 1000
    # The actor's weights come with its update and stay until the engine has them; then all models leave.
    step = [("keep", "cpu"), ("export_weights", "cuda"), *[("yield_device", "cpu")] * 3]
    assert turns == [("export_weights", "cpu"), *step * 2], "engines start with the weights of the ranks"
    for metrics in run.metrics:
        assert metrics["actor/grad_norm"] > 0
        assert metrics["critic/grad_norm"] > 0
        assert metrics["timing_s/release_engines"] > 0
        assert metrics["timing_s/resume_engines"] > 0
        assert metrics["training/rollout_probs_diff_max"] < 1e-4, "the engine has the weights of the update before"
    assert (run.folder / "global_step_2" / "actor" / "huggingface" / "model.safetensors").is_file()


def tell(name: str, move: Any, turns: list[tuple[str, str]]) -> Any:
    def moved(residence: Residence) -> None:
        move(residence)
        turns.append((name, place_of(residence)))

    return moved


def place_of(residence: Residence) -> str:
    parameters = [p.to_local() if isinstance(p, DTensor) else p for p in residence._net.parameters()]
    (place,) = {parameter.device.type for parameter in parameters}
    return place
