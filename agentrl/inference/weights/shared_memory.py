"""Memory that the trainer and an engine on the same machine share, by name: where a bucket lies while it is read."""

from __future__ import annotations

import os
import re
import tempfile
import uuid
from pathlib import Path
from typing import Self

import psutil
import torch

from agentrl.errors import UserInputError

_NAME = re.compile(r"agentrl-bucket-(\d+)-[0-9a-f]{8}")


def shared_folder() -> Path:
    """Where shared memory appears as files."""
    folder = Path("/dev/shm")
    return folder if os.access(folder, os.W_OK) else Path(tempfile.gettempdir())


class SharedMemory:
    """A run of bytes that other processes of this machine find under `name`. A context manager."""

    def __init__(self, size: int) -> None:
        _remove_stale()
        self.name = f"agentrl-bucket-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._path = shared_folder() / self.name
        self.bytes = torch.from_file(str(self._path), shared=True, size=max(1, size), dtype=torch.uint8)
        """uint8, (size,)."""

    def __enter__(self) -> Self:
        """The memory itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Forget the name; readers keep what they have mapped."""
        self._path.unlink(missing_ok=True)


def read_shared(name: object, size: int) -> torch.Tensor:
    """The first bytes of memory that another process shares: not a copy.

    Args:
        name: as `SharedMemory.name` gave it.
        size: how many bytes.

    Raises:
        UserInputError: another kind of name, or no such memory on this machine, or less of it.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserInputError(f"shared_memory: got {name!r}, wanted a name such as 'agentrl-bucket-4711-0a1b2c3d'")
    path = shared_folder() / name
    try:
        found = path.stat().st_size
    except OSError as error:
        raise UserInputError(
            f"shared_memory: '{name}' not found in {path.parent} ({error.strerror}): trainer and engine must be on one "
            "machine; between machines use rollout.weight_sync=distributed or disk"
        ) from error
    if found < size:
        raise UserInputError(f"shared_memory: '{name}' has {found} bytes, wanted {size}")
    return torch.from_file(str(path), shared=True, size=max(1, size), dtype=torch.uint8)[:size]


def _remove_stale() -> None:
    """Remove what killed runs left."""
    for path in shared_folder().glob("agentrl-bucket-*"):
        match = _NAME.fullmatch(path.name)
        if match and not psutil.pid_exists(int(match[1])):
            path.unlink(missing_ok=True)
