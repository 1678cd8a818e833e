"""Estimators and losses of the user's own in a recipe: found, checked at the start, and their keys told."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipes import overrides, write

from agentrl.config import load_config
from agentrl.errors import ConfigError

LOSS = "actor_rollout_ref.actor.policy_loss"
SOURCE = """
from agentrl.plugins import register


def estimate(token_level_rewards, response_mask, gamma):
    return token_level_rewards


def loss(log_probs, advantages, clip_ratio_low, power=1.0):
    return -advantages * log_probs


register("registered_estimate", "advantages")(estimate)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("own")
    (made / "own.py").write_text(SOURCE)
    return made


def problems(*given: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides(*given))
    return list(caught.value.problems)


def test_files_are_looked_for_beside_the_recipe(folder: Path) -> None:
    recipe = write(
        folder,
        "run.yaml",
        "algorithm: {adv_estimator: own.py:estimate}\n"
        "actor_rollout_ref: {actor: {policy_loss: {loss_mode: own.py:loss}}}\n",
    )
    given = [each for each in overrides() if "adv_estimator" not in each]
    config = load_config(recipe, given)
    assert config.algorithm.adv_estimator == f"{folder / 'own.py'}:estimate"
    assert config.actor_rollout_ref.actor.policy_loss == f"{folder / 'own.py'}:loss"


def test_registered_names_are_found_by_the_runs_plugins(folder: Path) -> None:
    given = [f"plugins=[{folder / 'own.py'}]", "algorithm.adv_estimator=registered_estimate"]
    assert load_config(None, overrides(*given)).algorithm.adv_estimator == "registered_estimate"


def test_keys_that_the_functions_read_are_told_apart(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = [f"algorithm.adv_estimator={folder / 'own.py'}:estimate", f"{LOSS}={folder / 'own.py'}:loss"]
    load_config(None, overrides(*own, "algorithm.gamma=0.9", "actor_rollout_ref.actor.clip_ratio_low=0.3"))
    assert "no effect" not in caplog.text
    load_config(None, overrides(*own, "algorithm.lam=0.9", "actor_rollout_ref.actor.clip_ratio_c=5"))
    assert "algorithm.lam has no effect here" in caplog.text
    assert "actor_rollout_ref.actor.clip_ratio_c has no effect here" in caplog.text


def test_what_cannot_be_used_is_told_at_the_start(folder: Path) -> None:
    file = folder / "own.py"
    assert "Did you mean 'estimate'" in problems(f"algorithm.adv_estimator={file}:estimat")[0]
    (problem,) = problems(f"algorithm.adv_estimator={file}:loss")
    assert "own.py:9): nothing fills its parameter 'log_probs'" in problem
    (problem,) = problems(f"{LOSS}={file}:loss", f"{LOSS}_kwargs.pwer=2")
    assert "got the keyword 'pwer', which it does not take. Did you mean 'power'" in problem
    assert load_config(None, overrides(f"{LOSS}={file}:loss", f"{LOSS}_kwargs.power=2"))
    assert problems(f"{LOSS}={folder / 'other.py'}:loss")[0].endswith("other.py does not exist")
    (problem,) = problems("algorithm.adv_estimator_kwargs.x=1")
    assert problem == "algorithm.adv_estimator_kwargs: got {'x': 1}, but grpo is agentrl's own estimator and takes none"
    (problem,) = problems(f"{LOSS}_kwargs.tau=1")
    assert problem.endswith("vanilla is agentrl's own loss, with actor_rollout_ref.actor.policy_loss_options")
