"""Creates the folders that a run writes to, and checks that it can, before anything is started."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from agentrl.errors import ConfigError

CONFIG_FILE = "config.yaml"
"""The resolved configuration in a run's folder."""


def make_folders(folders: Mapping[str, str | None]) -> None:
    """Create folders and write to each.

    Args:
        folders: path by its configuration key; None: not used.

    Raises:
        ConfigError: lists every folder that cannot be created or written to.
    """
    problems = []
    for key, folder in folders.items():
        if folder is None:
            continue
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            problems.append(f"{key}: got '{folder}', which cannot be written to: {error.strerror or error}")
    if problems:
        raise ConfigError(problems)
