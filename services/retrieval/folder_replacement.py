"""Put a finished folder in its place in one step, also over an older one that a server has open."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def replace_folder(built: Path, target: Path) -> None:
    """Move `built` to `target`; an older folder there is exchanged for it at once, then deleted.

    A server that has the old files mapped keeps them until it reloads.
    """
    if not target.exists():
        os.replace(built, target)
    elif _exchange(built, target):
        shutil.rmtree(built)
    else:
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        os.replace(target, old)
        os.replace(built, target)
        shutil.rmtree(old)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step, where the system can."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    answer: int = rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    return answer == 0
