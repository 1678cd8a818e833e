"""Algorithms learn: from the demo's warm start each reaches what GRPO does there (`test_demos_learn.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_variants import Recorder

from agentrl.cli.demo.warm_start import WarmStart, prepare_warm_start
from agentrl.config import load_config
from agentrl.trainer.run import run_training

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(1800)]

BAR = 0.95
HELD_OUT_SUCCESS = "val-core/agentrl/arithmetic/reward/mean@1"
ACCURACY = HELD_OUT_SUCCESS.replace("reward", "acc")
"""The score without DAPO's penalty for long responses."""
STEPS = 1.5 * load_config("demo").trainer.total_training_steps
"""Those of GRPO and half as many again."""
RECIPES = [f"demo_{name}" for name in ("ppo", "rloo", "reinforce_plus_plus", "remax", "gspo", "dapo")]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> WarmStart:
    return prepare_warm_start(tmp_path_factory.mktemp("calculator"), [])


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_reaches_the_bar(recipe: str, start: WarmStart, tmp_path: Path) -> None:
    settings = {
        "data.train_files": start.data.train,
        "data.val_files": start.data.held_out,
        "actor_rollout_ref.model.path": start.model,
        "trainer.default_local_dir": tmp_path,
        "trainer.backend": "local",
        "trainer.save_freq": -1,
        "trainer.logger": "[jsonl]",
    }
    recorder = Recorder()
    run_training(load_config(recipe, [f"{key}={value}" for key, value in settings.items()]), [recorder])
    success = ACCURACY if recipe == "demo_dapo" else HELD_OUT_SUCCESS
    curve = {step: metrics[success] for step, metrics in recorder.metrics.items() if success in metrics}
    assert curve[0] < 0.5, curve  # calling does not pay off yet
    assert max(curve.values()) >= BAR, curve
    assert max(curve) <= STEPS
