"""Roles in pools of different sizes give what one rank gives, and such runs end and go on as all others do."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from acting_tracker import At
from runs import Run, Workspace, same
from safetensors.torch import load_file

from agentrl.config import load_config
from agentrl.errors import WorkerError
from agentrl.observability.trackers import JsonlTracker
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
    "trainer__role_pools": {"critic": "small", "ref": "frozen"},
}
"""Two ranks of the actor, one of the critic, one of the reference."""


def policy_of(run: Run, step: int) -> dict[str, torch.Tensor]:
    return load_file(run.folder / f"global_step_{step}" / "actor" / "huggingface" / "model.safetensors")


def in_one_process(run: Run, steps: int, *overrides: str) -> None:
    here = ["trainer.backend=local", "trainer.n_gpus_per_node=1", f"trainer.total_training_steps={steps}"]
    run_training(load_config(run.recipe, [*here, *overrides]))


def test_roles_in_pools_of_their_own_learn_what_one_rank_learns(workspace: Workspace, engine: str) -> None:
    """The run ends when the reference dies in its pool, saves what was learnt, and goes on without pools."""
    address = {"actor_rollout_ref__rollout__server__addresses": [engine]}
    one, apart = workspace.run("one_rank", **PPO, **address), workspace.run("pools", **PPO, **POOLS, **address)

    def kill_the_reference() -> None:
        os.kill(trainer.processes.reference._backend._pids[0][1], signal.SIGKILL)  # type: ignore[union-attr, attr-defined]

    config = load_config(apart.recipe)
    make_folders(output_folders(config))
    trainer = RayPPOTrainer(config, [JsonlTracker(), At(3, "old_log_prob", kill_the_reference)])
    with pytest.raises(WorkerError, match=r"^rank 0 of 1 \(ActorRolloutRefWorker\) died in compute_ref_log_prob"):
        trainer.fit()
    assert (apart.folder / LATEST).read_text() == "2"
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
