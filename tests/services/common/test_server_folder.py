"""A server's own folder: gone when the server ends, and with the next one where it was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.services.common.server_folder import remove_folder, server_folder

HOLD = """
import sys
from agentrl.services.common.server_folder import server_folder
with server_folder(sys.argv[1]) as home:
    print(home, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def hold(service: str, temp: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """A process that has such a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, service],
        env=os.environ | {"TMPDIR": str(temp)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    return process, Path(os.fsdecode(process.stdout.readline().strip()))


def test_it_is_there_for_its_owner_alone_and_then_gone(temp: Path) -> None:
    with server_folder("search") as home:
        assert home.parent == temp
        assert home.stat().st_mode & 0o777 == 0o700
        (home / "file").write_text("x")
        with server_folder("search") as second:
            assert second != home
        assert home.exists()
    assert list(temp.iterdir()) == []


def test_the_next_server_removes_what_a_killed_one_left_and_nothing_else(temp: Path) -> None:
    (temp / "agentrl-search-notes").mkdir()
    killed, left = hold("search", temp)
    other, of_other = hold("other", temp)
    alive, used = hold("search", temp)
    for process in (killed, other):
        process.kill()
        process.communicate()
    with server_folder("search"):
        assert not left.exists()
        assert used.exists()
        assert of_other.exists()
        assert (temp / "agentrl-search-notes").exists()
    alive.communicate(b"")
    assert alive.returncode == 0
    assert not used.exists()


def test_a_server_that_starts_at_the_same_moment_takes_nothing_away(
    temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, taken = fcntl.flock, []

    def flock_too_late(lock: int, operation: int) -> None:
        if not taken:
            taken.extend(temp.iterdir())
            shutil.rmtree(taken[0])
        flock(lock, operation)

    monkeypatch.setattr(fcntl, "flock", flock_too_late)
    with server_folder("search") as home:
        assert taken == [home]
        assert (home / "lock").exists()
    assert list(temp.iterdir()) == []


def test_a_folder_without_permissions_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "file").touch()
    (folder / "in").chmod(0)
    remove_folder(folder)
    assert not folder.exists()
