"""A server's own folder, and the removal of folders that killed servers left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def server_folder(service: str) -> Iterator[Path]:
    """A new folder, locked while it is in use and removed afterwards; those of dead servers are removed first.

    Args:
        service: its name; folders of other services are left alone.
    """
    parent, prefix = Path(tempfile.gettempdir()), f"agentrl-{service}-"
    for old in parent.glob(f"{prefix}*"):
        _remove_if_left(old)
    folder = parent / f"{prefix}{secrets.token_hex(8)}"
    try:
        lock = _make_locked(folder)
        try:
            yield folder
        finally:
            os.close(lock)
    finally:
        try:
            remove_folder(folder)
        except BaseException:  # a signal: it comes once
            remove_folder(folder)
            raise


def _make_locked(folder: Path) -> int:
    """Make a folder and lock it; returns the lock's descriptor."""
    while True:
        folder.mkdir(0o700)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return lock
        os.close(lock)  # before the lock, another server that starts now took the folder for left behind


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


def remove_folder(folder: Path) -> None:
    """Remove a folder whatever is in it: trees too deep to recurse into, folders without permissions."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        subprocess.run(["chmod", "-R", "u+rwX", str(folder)], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["rm", "-rf", str(folder)], stderr=subprocess.DEVNULL, check=False)
