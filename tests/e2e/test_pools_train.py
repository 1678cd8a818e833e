"""Roles in pools of different sizes give what one rank gives, and such runs end and go on as all others do."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from acting_tracker import At
from machines import machines
from runs import Run, Workspace, same
from safetensors.torch import load_file

from agentrl.config import load_config
from agentrl.errors import WorkerError
from agentrl.observability.tracker import Tracker
from agentrl.observability.trackers import JsonlTracker
from agentrl.single_controller import WorkerGroup
from agentrl.single_controller.ray_calls import RayCall
from agentrl.testing.models import build_tiny_classifier
from agentrl.trainer.checkpoint import LATEST
from agentrl.trainer.folders import make_folders, output_folders
from agentrl.trainer.ppo import RayPPOTrainer
from agentrl.trainer.run import run_training

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
PPO: dict[str, Any] = {
    "algorithm__adv_estimator": "gae",
    "actor_rollout_ref__actor__use_kl_loss": True,
    "critic__optim__lr": 1e-3,
    "trainer__deterministic": True,
    "trainer__save_freq": 1000,
    "data__train_batch_size": 3,
}
POOLS: dict[str, Any] = {
    "trainer__backend": "ray",
    "trainer__n_gpus_per_node": 2,
    "trainer__total_training_steps": 1000,
    "trainer__resource_pools": {"small": {"n_gpus": 1}, "frozen": [1]},
    "trainer__role_pools": {"critic": "small", "ref": "frozen", "reward_model": "frozen"},
}
"""Two ranks of the actor, one of the critic, one that reference and reward model share."""


@pytest.fixture
def cluster() -> Iterator[str]:
    """Address of a Ray cluster of two machines, with two CPUs and one."""
    with machines({"num_cpus": 2}, {"num_cpus": 1}) as cluster:
        yield cluster.address


def policy_of(run: Run, step: int) -> dict[str, torch.Tensor]:
    return load_file(run.folder / f"global_step_{step}" / "actor" / "huggingface" / "model.safetensors")


def in_one_process(run: Run, steps: int, *overrides: str) -> None:
    here = ["trainer.backend=local", "trainer.n_gpus_per_node=1", f"trainer.total_training_steps={steps}"]
    run_training(load_config(run.recipe, [*here, *overrides]))


def trainer_of(run: Run, tracker: Tracker) -> RayPPOTrainer:
    config = load_config(run.recipe)
    make_folders(output_folders(config))
    return RayPPOTrainer(config, [JsonlTracker(), tracker])


def machines_of(group: WorkerGroup) -> set[str]:
    return {node for node, _ in group._backend._pids}  # type: ignore[attr-defined]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the trainer sends to its ranks, and what has come back."""
    seen: list[str] = []
    sends, waits = WorkerGroup.submit_after, RayCall.results

    def send(group: WorkerGroup, others: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        seen.append(f"{method} sent")
        return sends(group, others, method, *args, **kwargs)

    def wait(call: RayCall, timeout_s: float | None = None) -> Any:
        results = waits(call, timeout_s)
        seen.append(f"{call._method} back")
        return results

    monkeypatch.setattr(WorkerGroup, "submit_after", send)
    monkeypatch.setattr(RayCall, "results", wait)
    return seen


@pytest.mark.slow
def test_roles_in_pools_of_their_own_learn_what_one_rank_learns(
    workspace: Workspace, engine: str, events: list[str]
) -> None:
    """The run ends when the reference dies in its pool, saves what was learnt, and goes on without pools."""
    address = {
        "actor_rollout_ref__rollout__server__addresses": [engine],
        "reward_model__enable": True,
        "reward_model__model__path": str(build_tiny_classifier(workspace.folder / "classifier", num_hidden_layers=1)),
    }
    one, apart = workspace.run("one_rank", **PPO, **address), workspace.run("pools", **PPO, **POOLS, **address)

    def kill_the_reference() -> None:
        os.kill(trainer.processes.reference._backend._pids[0][1], signal.SIGKILL)  # type: ignore[union-attr, attr-defined]

    trainer = trainer_of(apart, At(3, "gen", kill_the_reference))
    with pytest.raises(WorkerError, match=r"^rank 0 of 1 \(ActorRolloutRefWorker\) died in compute_ref_log_prob"):
        trainer.fit()
    assert (apart.folder / LATEST).read_text() == "2"
    first = events.index("compute_rm_score sent")
    passes = ["compute_log_prob", "compute_ref_log_prob", "compute_values"]
    assert events[first : first + 5] == [
        "compute_rm_score sent",
        *(f"{name} sent" for name in passes),
        "compute_rm_score back",
    ]
    update = events.index("update_critic sent")
    assert events[update : update + 4] == [
        *("update_critic sent", "update_actor sent"),
        *("update_critic back", "update_actor back"),
    ]
    in_one_process(apart, 3)
    in_one_process(one, 3, "trainer.save_freq=1")
    assert sorted(apart.steps) == [1, 2, 3]
    for step in (1, 2, 3):
        left, right = ({k: v for k, v in run.steps[step].items() if "seqlen" not in k} for run in (one, apart))
        same(left, right, 1e-4)
    for step in (2, 3):
        expected, got = policy_of(one, step), policy_of(apart, step)
        assert expected.keys() == got.keys()
        for name, value in expected.items():
            torch.testing.assert_close(got[name], value, atol=1e-5, rtol=0, msg=f"step {step}: {name}")
    assert max(row["critic/vf_loss"] for row in apart.metrics) > 0
    assert max(float((policy_of(one, 1)[name] - value).abs().max()) for name, value in policy_of(one, 3).items()) > 1e-4


@pytest.mark.slow
def test_a_critic_on_the_second_machine(workspace: Workspace, engine: str, cluster: str) -> None:
    address = {"actor_rollout_ref__rollout__server__addresses": [engine], "trainer__total_training_steps": 2}
    pools = {
        "trainer__backend": "ray",
        "ray_init__address": cluster,
        "ray_init__num_cpus": None,
        "trainer__n_gpus_per_node": 2,
        "trainer__resource_pools": {"second": [1]},
        "trainer__role_pools": {"critic": "second"},
    }
    one, two = (workspace.run(name, **{**PPO, **address, **more}) for name, more in (("near", {}), ("far", pools)))
    seen: list[set[str]] = []

    def look() -> None:
        groups = trainer.processes.groups
        assert groups == [trainer.processes.actor, trainer.processes.reference, trainer.processes.critic]
        seen.extend(map(machines_of, groups))

    trainer = trainer_of(two, At(2, "gen", look))
    trainer.fit()
    actor, reference, critic = seen
    assert (len(actor), len(critic)) == (1, 1)
    assert actor == reference != critic
    in_one_process(one, 2)
    for step in (1, 2):
        left, right = ({k: v for k, v in run.steps[step].items() if "seqlen" not in k} for run in (one, two))
        same(left, right, 1e-4)
