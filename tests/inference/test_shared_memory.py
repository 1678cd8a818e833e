"""Memory that trainer and engine share: where it lies, and what happens where there is no room."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from agentrl.errors import InfrastructureError
from agentrl.inference.weights import shared_memory
from agentrl.inference.weights.shared_memory import SharedMemory, read_shared


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[set[str]], None]:
    """Two folders for shared memory; `room({"a"})` leaves room in the first one alone."""
    if sys.platform != "linux":
        pytest.skip("memory is reserved on Linux only")
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setattr(shared_memory, "shared_folders", lambda: folders)

    def leave(names: set[str]) -> None:
        def allocate(file: int, offset: int, size: int) -> None:
            folder = Path(os.readlink(f"/proc/self/fd/{file}")).parent
            if folder.name not in names:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.truncate(file, size)

        monkeypatch.setattr(os, "posix_fallocate", allocate)

    return leave


@pytest.mark.parametrize("name", ["a", "b"])
def test_it_lies_where_there_is_room(name: str, room: Callable[[set[str]], None], tmp_path: Path) -> None:
    """A container has 64 MB of shared memory, and a bucket more: written all the same, it would end the rank."""
    room({name})
    with SharedMemory(100) as memory:
        assert [path.name for path in (tmp_path / name).iterdir()] == [memory.name]
        memory.bytes.fill_(7)
        assert torch.equal(read_shared(memory.name, 50), torch.full((50,), 7, dtype=torch.uint8))
    assert not [path for folder in tmp_path.iterdir() for path in folder.iterdir()]


def test_no_room_is_told(room: Callable[[set[str]], None], tmp_path: Path) -> None:
    room(set())
    with pytest.raises(InfrastructureError, match=r"100 bytes .* cannot be had .*/a: No space .*update_weights_bucket"):
        SharedMemory(100)
    assert not [path for folder in tmp_path.iterdir() for path in folder.iterdir()]


def test_all_of_it_is_there_before_it_is_written() -> None:
    with SharedMemory(3 * 2**20) as memory:
        folder = next(f for f in shared_memory.shared_folders() if (f / memory.name).exists())
        assert (folder / memory.name).stat().st_blocks * 512 >= 3 * 2**20
