"""Every algorithm's recipe in `configs/` trains a step."""

from __future__ import annotations

import math

import pytest
from runs import Workspace
from test_variants import Recorder

from agentrl.config import load_config
from agentrl.trainer.run import run_training

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

MODEL = "actor_rollout_ref.model.path"
SMALL = {
    "data.max_prompt_length": 64,
    "data.max_response_length": 24,
    "data.train_batch_size": 4,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
    "actor_rollout_ref.rollout.name": "embedded",
    "actor_rollout_ref.rollout.agent.default_agent_loop": "single_turn_agent",
    "trainer.device": "cpu",
    "trainer.backend": "local",
    "trainer.threads_per_rank": 1,
    "trainer.total_training_steps": 1,
    "trainer.test_freq": -1,
    "trainer.save_freq": -1,
}
SHOWS = {
    "dapo": {"reward_model.overlong_buffer.len": 12},
    "remax": {"actor_rollout_ref.rollout.n": 1},
    "reinforce_plus_plus": {"actor_rollout_ref.rollout.n": 1},
}
"""What else a small run needs."""
NAMES = ["grpo", "ppo", "dapo", "dr_grpo", "rloo", "reinforce_plus_plus", "remax", "gspo", "cispo"]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_trains_a_step(name: str, workspace: Workspace, engine: str) -> None:
    settings = {
        **SMALL,
        "actor_rollout_ref.rollout.n": 2,
        "data.train_files": workspace.train,
        "custom_reward_function.path": workspace.score,
        MODEL: workspace.model,
        "actor_rollout_ref.rollout.server.addresses": f"[{engine}]",
        "trainer.default_local_dir": workspace.folder / f"recipe_{name}",
        **SHOWS.get(name, {}),
    }
    config = load_config(name, [f"{key}={value}" for key, value in settings.items()])
    recorder = Recorder()
    run_training(config, [recorder])
    metrics = recorder.metrics[1]
    assert all(map(math.isfinite, metrics.values()))
    assert metrics["actor/grad_norm"] > 0
    assert metrics["actor/optimizer_steps"] >= 1
    if name == "dapo":
        assert metrics["reward/overlong/mean"] > 0  # the tiny model never ends before the limit
        assert metrics["critic/score/min"] < 0
    if name == "remax":
        assert "rollout/greedy/score/mean" in metrics
