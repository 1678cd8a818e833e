"""The folders that a run writes to: checked before anything is started, then created."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.errors import ConfigError


def output_folders(config: RunConfig) -> dict[str, str]:
    """The folders of a run, by key."""
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    cache = rollout.multi_turn.tool_cache
    folders = {
        "trainer.default_local_dir": trainer.default_local_dir,
        "trainer.rollout_data_dir": trainer.rollout_data_dir,
        "trainer.validation_data_dir": trainer.validation_data_dir,
        "actor_rollout_ref.rollout.weight_sync_dir": rollout.weight_sync_dir,
        "actor_rollout_ref.rollout.multi_turn.tool_cache.path": cache.path if cache.mode == "record" else None,
    }
    return {key: folder for key, folder in folders.items() if folder is not None}


def check_folders(folders: Mapping[str, str]) -> None:
    """Look whether folders can be made and written to; nothing is made.

    Raises:
        ConfigError: lists every folder that cannot.
    """
    problems = []
    for key, folder in folders.items():
        place = Path(folder).absolute()
        while not os.path.lexists(place) and place != place.parent:
            place = place.parent
        reason = None if os.access(place, os.W_OK | os.X_OK) else errno.EACCES
        reason = reason if place.is_dir() else errno.ENOTDIR
        if reason is not None:
            problems.append(f"{key}: got '{folder}', which cannot be written to: {os.strerror(reason)} ({place})")
    if problems:
        raise ConfigError(problems)


def make_folders(folders: Mapping[str, str]) -> None:
    """Create folders and write to each.

    Args:
        folders: path by its configuration key.

    Raises:
        ConfigError: lists every folder that cannot be created or written to.
    """
    problems = []
    for key, folder in folders.items():
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            problems.append(f"{key}: got '{folder}', which cannot be written to: {error.strerror or error}")
    if problems:
        raise ConfigError(problems)
