"""Memory that the trainer and an engine on the same machine share, by name: where a bucket lies while it is read."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Self

import torch

from agentrl.errors import InfrastructureError, UserInputError
from agentrl.leftovers import owned_prefix, remove_leftovers

_KIND = "agentrl-bucket"
_NAME = re.compile(rf"{_KIND}-\d+-[0-9a-f]{{6}}-[0-9a-f]{{8}}")


def shared_folders() -> list[Path]:
    """Where shared memory appears as files: the second where the first has no room (containers often give it 64 MB)."""
    return [Path("/dev/shm"), Path(tempfile.gettempdir())]


class SharedMemory:
    """A run of bytes that other processes of this machine find under `name`. A context manager.

    Raises:
        InfrastructureError: there is no room for them.
    """

    def __init__(self, size: int) -> None:
        self.name = f"{owned_prefix(_KIND)}{uuid.uuid4().hex[:8]}"
        self._path = _reserve(self.name, max(1, size))
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
        raise UserInputError(
            f"shared_memory: got {name!r}, wanted a name such as 'agentrl-bucket-4711-9f3c21-0a1b2c3d'"
        )
    path = next((folder / name for folder in shared_folders() if (folder / name).exists()), None)
    if path is None:
        raise UserInputError(
            f"shared_memory: '{name}' not found in {_listed()}: trainer and engine must be on one machine; between "
            "machines use rollout.weight_sync=distributed or disk"
        )
    found = path.stat().st_size
    if found < size:
        raise UserInputError(f"shared_memory: '{name}' has {found} bytes, wanted {size}")
    return torch.from_file(str(path), shared=True, size=max(1, size), dtype=torch.uint8)[:size]


def _reserve(name: str, size: int) -> Path:
    """A file of this size in the first folder that has room for it.

    A file that is only given a length takes the memory when it is written, and where that is used up, the kernel ends
    the writer (SIGBUS).
    """
    problems = []
    for folder in shared_folders():
        remove_leftovers(folder, _KIND)
        path = folder / name
        try:
            with path.open("xb") as file:
                if sys.platform == "linux":
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
        except OSError as error:
            path.unlink(missing_ok=True)
            problems.append(f"{folder}: {error.strerror}")
        else:
            return path
    raise InfrastructureError(
        f"{size} bytes of shared memory for a bucket of weights cannot be had ({'; '.join(problems)}): lower "
        "actor_rollout_ref.rollout.update_weights_bucket_megabytes, or set actor_rollout_ref.rollout.weight_sync=disk"
    )


def _listed() -> str:
    return " or ".join(str(folder) for folder in shared_folders())
