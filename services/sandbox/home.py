"""The server's own folder: where the folders of runs are, and what a killed server left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.services.sandbox.jail import remove_folder

_PREFIX = "agentrl-sandbox-"


@contextmanager
def own_folder() -> Iterator[Path]:
    """A new folder, locked while it is in use and removed afterwards; those of dead servers are removed first."""
    parent = Path(tempfile.gettempdir())
    for old in parent.glob(f"{_PREFIX}*"):
        _remove_if_left(old)
    home = parent / f"{_PREFIX}{secrets.token_hex(8)}"
    try:
        home.mkdir(0o700)
        home.chmod(0o711)  # code that is another user has to get through to its own folder
        lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield home
        finally:
            os.close(lock)
    finally:
        try:
            remove_folder(home)
        except BaseException:  # a signal: it comes once
            remove_folder(home)
            raise


def _remove_if_left(folder: Path) -> None:
    with contextlib.suppress(OSError):  # another server that starts now may be faster
        if folder.stat().st_uid != os.geteuid():
            return
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_folder(folder)
        finally:
            os.close(lock)
