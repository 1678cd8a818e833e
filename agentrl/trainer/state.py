"""The trainer's state between two steps, as of the last finished one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentrl.data.loader import StatefulLoader
from agentrl.observability.health import HealthMonitor
from agentrl.trainer.batch_columns import KLController
from agentrl.trainer.checkpoint import DATA_FILE, STATE_FILE, load_state, resuming, save_state

Snapshot = dict[str, dict[str, Any]]


class TrainerState:
    """Step, weight version, KL controller, health monitor, loader cursor and random states.

    `save` writes the state at the end of the last finished step, so an interrupted step (Ctrl-C) leaves no trace in a
    checkpoint.

    Args:
        loader: the training rows.
        kl_controller: the weight of the KL in the reward.
        health: the monitor with the run's history.
    """

    def __init__(self, loader: StatefulLoader, kl_controller: KLController, health: HealthMonitor) -> None:
        self.step = 0
        self.weight_version = 0
        self.loader = loader
        self.kl_controller = kl_controller
        self.health = health
        self._snapshot = self._capture()

    def finish_step(self, step: int) -> None:
        """Remember everything as of the end of `step`."""
        self.step = step
        self._snapshot = self._capture()

    def save(self, folder: Path) -> None:
        """Write `data.pt` and `trainer_state.pt`.

        Raises:
            CheckpointError: they cannot be written.
        """
        for name, state in self._snapshot.items():
            save_state(folder / name, state)

    def load(self, folder: Path) -> None:
        """Resume from what `save` wrote.

        Raises:
            CheckpointError: a file is damaged, or another program wrote it.
        """
        data, state = load_state(folder / DATA_FILE), load_state(folder / STATE_FILE)
        with resuming(folder, "agentrl train"):
            self._take(data, state)

    def _take(self, data: dict[str, Any], state: dict[str, Any]) -> None:
        self.kl_controller.load_state_dict(state["kl_controller"])
        self.loader.load_state_dict(data)
        self.weight_version = state["weight_version"]
        if "health" in state:  # not in checkpoints of older versions
            self.health.load_state_dict(state["health"])
        _restore_random_states(state["random"])
        self.finish_step(state["global_step"])

    def _capture(self) -> Snapshot:
        return {
            DATA_FILE: dict(self.loader.state_dict()),
            STATE_FILE: {
                "global_step": self.step,
                "weight_version": self.weight_version,
                "kl_controller": self.kl_controller.state_dict(),
                "health": self.health.state_dict(),
                "random": _random_states(),
            },
        }


def seed_everything(seed: int) -> None:
    """Seed this process."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _random_states() -> dict[str, Any]:
    numpy = np.random.get_state(legacy=False)
    return {
        "python": random.getstate(),
        "numpy": {**numpy, "state": {**numpy["state"], "key": numpy["state"]["key"].tolist()}},
        "torch": torch.get_rng_state(),
    }


def _restore_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
