"""What killed processes left is removed, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.leftovers import owned_prefix, remove_leftovers


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def make(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    (path / "content").touch()
    return path


def test_only_what_dead_processes_of_this_machine_own_goes(tmp_path: Path) -> None:
    own = owned_prefix("agentrl-things")
    kind, pid, where = own.removesuffix("-").rsplit("-", 2)
    assert (kind, pid) == ("agentrl-things", str(os.getpid()))
    dead = make(tmp_path, f"{kind}-{dead_pid()}-{where}-x")
    file = tmp_path / f"{kind}-{dead_pid()}-{where}-file"
    file.touch()
    kept = {
        make(tmp_path, f"{own}x"),
        make(tmp_path, f"{kind}-{os.getppid()}-{where}-x"),
        make(tmp_path, f"{kind}-{dead_pid()}-0a1b2c-x"),  # of a run elsewhere, on a disk that both share
        make(tmp_path, f"{kind}-of-mine"),
    }
    remove_leftovers(tmp_path, kind)
    assert not dead.exists()
    assert not file.exists()
    assert set(tmp_path.iterdir()) == kept


def test_what_other_machines_abandoned_goes(tmp_path: Path) -> None:
    """A pod that is started anew has another name, and nobody else removes what it left on a shared disk."""
    old, new = (make(tmp_path, f"agentrl-things-4711-0a1b2c-{name}") for name in ("old", "new"))
    os.utime(old, (0, 0))
    remove_leftovers(tmp_path, "agentrl-things")
    assert old.exists()
    remove_leftovers(tmp_path, "agentrl-things", unchanged_s=3600)
    assert (old.exists(), new.exists()) == (False, True)


def test_what_may_not_be_removed_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `/tmp` and `/dev/shm`, where everybody writes, only its owner removes a file."""

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    file = tmp_path / owned_prefix("agentrl-things").replace(str(os.getpid()), str(dead_pid()), 1)
    file = file.with_name(f"{file.name}x")
    file.touch()
    remove_leftovers(tmp_path, "agentrl-things")
    assert file.exists()
