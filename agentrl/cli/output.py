"""Log lines on stderr, and files that are written in one step."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from agentrl.errors import UserInputError, suggest

if TYPE_CHECKING:
    from rich.console import Console

_HANDLER = "agentrl command"
_FILE_WIDTH = 160
"""Of tables in a file or pipe."""


LEVEL_VARIABLE = "AGENTRL_LOG_LEVEL"
LEVELS = ("debug", "info", "warning", "error", "critical")


def log_level(debug: bool) -> int:
    """The lowest level of log lines that are shown: `--debug`, else the environment variable, else info.

    Raises:
        UserInputError: the variable names no level.
    """
    given = os.environ.get(LEVEL_VARIABLE, "").strip() or "info"
    if given.lower() not in LEVELS:
        raise UserInputError(
            f"the environment variable {LEVEL_VARIABLE}: got '{given}'.{suggest(given.lower(), LEVELS)}"
        )
    return logging.DEBUG if debug else int(getattr(logging, given.upper()))


def set_up_logging(level: int) -> None:
    """Send agentrl's log lines to stderr: in colour on a terminal, else each message unbroken, for files and `grep`."""
    # Progress bars of model files would break a live table; Ray's workers inherit the setting.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler would say that it starts and stops
    logger = logging.getLogger("agentrl")
    for old in [existing for existing in logger.handlers if existing.name == _HANDLER]:
        logger.removeHandler(old)
    handler = _handler(level <= logging.DEBUG)
    handler.name = _HANDLER
    logger.addHandler(handler)
    logger.setLevel(level)


def _handler(debug: bool) -> logging.Handler:
    from rich.console import Console
    from rich.logging import RichHandler

    console = Console(stderr=True)
    if console.is_terminal:
        rich = RichHandler(console=console, show_path=debug, log_time_format="%H:%M:%S", markup=False)
        rich.setFormatter(logging.Formatter("%(message)s"))
        return rich
    place = " (%(name)s:%(lineno)d)" if debug else ""
    plain = _PlainHandler()
    plain.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)-8s %(message)s{place}", "%H:%M:%S"))
    return plain


class _PlainHandler(logging.Handler):
    """Writes to what is standard error at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"{self.format(record)}\n")
        sys.stderr.flush()


def table_console() -> Console:
    """Standard output; off a terminal, as wide as a table needs."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, _FILE_WIDTH))


def print_json(value: Any, *, indent: int | None = 1) -> None:
    """Print a value for programs; a number that is not finite is null, which JSON has no other word for."""
    typer.echo(json.dumps(_without_nan(value), ensure_ascii=False, indent=indent, allow_nan=False))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
