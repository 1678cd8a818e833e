"""Recipes for tests: the least that is a whole run."""

from __future__ import annotations

from pathlib import Path

MINIMAL = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.model.path": "/models/tiny",
    "actor_rollout_ref.rollout.n": "8",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "16",
    "data.train_files": "/data/train.parquet",
    "data.train_batch_size": "16",
}


def overrides(*more: str) -> list[str]:
    """Overrides of a minimal run, and more."""
    return [f"{key}={value}" for key, value in MINIMAL.items()] + list(more)


def write(folder: Path, name: str, text: str) -> Path:
    """Write a recipe file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
