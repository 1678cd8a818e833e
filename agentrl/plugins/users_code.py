"""Users' functions in messages: their name, where they are defined, where in them an error was raised."""

from __future__ import annotations

import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.plugins.signatures import innermost

_AGENTRL = str(Path(__file__).resolve().parents[1]) + os.sep
_LIBRARIES = tuple(
    str(Path(folder).resolve()) + os.sep
    for key, folder in sysconfig.get_paths().items()
    if key in ("stdlib", "platstdlib", "purelib", "platlib")
)


def described(function: Callable[..., Any]) -> str:
    """A function's name and the file and line that define it: `compute_score (reward.py:12)`."""
    inner = inspect.unwrap(innermost(function))
    code = getattr(inner, "__code__", None)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return name if code is None else f"{name} ({short_path(code.co_filename)}:{code.co_firstlineno})"


def raised_at(error: BaseException, function: Callable[..., Any]) -> str:
    """File and line of the user's own code where an error was raised: ` (reward.py:14)`; empty if none is in its trace.

    Of `reward.py:14 -> json/decoder.py:355` it is the first: the last line that is the user's, not a library's. Code of
    an installed package counts where the function itself is there.
    """
    code = getattr(inspect.unwrap(innermost(function)), "__code__", None)
    home = code.co_filename if code is not None else ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _real(frame.filename, _AGENTRL)]
    own = [frame for frame in frames if frame.filename == home or not _real(frame.filename, _LIBRARIES)]
    return f" ({short_path(own[-1].filename)}:{own[-1].lineno})" if own else ""


def short_path(file: str) -> str:
    """A path relative to the working folder where that is above it."""
    path = os.path.relpath(file) if os.path.isabs(file) else file
    return file if path.startswith("..") else path


def _real(file: str, folders: str | tuple[str, ...]) -> bool:
    return os.path.realpath(file).startswith(folders)
