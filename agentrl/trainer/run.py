"""The entry point of a training run."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.config import RunConfig, dump_config
from agentrl.observability.tracker import Tracker
from agentrl.trainer.folders import make_folders
from agentrl.trainer.ppo import RayPPOTrainer

CONFIG_FILE = "config.yaml"


def run_training(config: RunConfig, trackers: Sequence[Tracker] | None = None) -> RayPPOTrainer:
    """Check, start, train, stop.

    The run folder (`trainer.default_local_dir`) gets the resolved configuration, logs and checkpoints.

    Args:
        config: the run.
        trackers: receive the run's events; None: those that `trainer.logger` names.

    Returns:
        The trainer, its processes stopped.

    Raises:
        AgentRLError: see `RayPPOTrainer`.
        KeyboardInterrupt: Ctrl-C or SIGTERM, after a clean stop.
    """
    trainer = RayPPOTrainer(config, trackers)
    make_folders(
        {
            "trainer.default_local_dir": config.trainer.default_local_dir,
            "trainer.rollout_data_dir": config.trainer.rollout_data_dir,
            "trainer.validation_data_dir": config.trainer.validation_data_dir,
            "actor_rollout_ref.rollout.weight_sync_dir": config.actor_rollout_ref.rollout.weight_sync_dir,
        }
    )
    (trainer.folder / CONFIG_FILE).write_text(dump_config(config), encoding="utf-8")
    trainer.fit()
    return trainer
