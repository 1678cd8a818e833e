"""Log lines on stderr, and files that are written in one step."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from agentrl.errors import UserInputError


def set_up_logging(debug: bool) -> None:
    """Send agentrl's log lines to stderr, in colour on a terminal."""
    from rich.console import Console
    from rich.logging import RichHandler

    # Progress bars of model files would break a live table; Ray's workers inherit the setting.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    handler = RichHandler(console=Console(stderr=True), show_path=debug, log_time_format="%H:%M:%S", markup=False)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("agentrl")
    for old in [existing for existing in logger.handlers if isinstance(existing, RichHandler)]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if debug else logging.INFO)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step.

    Raises:
        UserInputError: the file cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise UserInputError(f"cannot write {path}: {error.strerror or error}") from error
