"""Cgroups of runs, as the kernel has them here and as files in a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.services.sandbox import memory_cgroup
from agentrl.services.sandbox.memory_cgroup import MemoryCgroup, MemoryCgroups, open_memory_cgroups


@pytest.fixture
def cgroups() -> Iterator[MemoryCgroups]:
    found = open_memory_cgroups()
    if found is None:
        pytest.skip("this user may make no memory cgroup here")
    yield found
    found.close()


def test_a_process_that_takes_more_than_its_limit(cgroups: MemoryCgroups) -> None:
    cgroup = cgroups.take()
    for mib in (64, 2000, 32):  # up and down
        cgroup.limit(mib)
    with subprocess.Popen([sys.executable, "-c", "input(); bytearray(100 << 20)"], stdin=subprocess.PIPE) as process:
        cgroup.add(process.pid)
        assert cgroup.excess is None
        process.communicate(b"\n")
    assert process.returncode == -9
    assert cgroup.excess == "it used more than 32 MB of memory"
    assert not cgroup.is_clean
    cgroups.give_back(cgroup)
    assert cgroups.take() is not cgroup


def test_a_cgroup_serves_again(cgroups: MemoryCgroups) -> None:
    cgroup = cgroups.take()
    cgroup.limit(64)
    with subprocess.Popen(["sleep", "60"]) as process:
        cgroup.add(process.pid)
        assert not cgroup.is_clean
        process.kill()
    cgroups.give_back(cgroup)
    assert cgroups.take() is cgroup


def test_nothing_is_left_and_what_a_killed_server_left_goes(cgroups: MemoryCgroups) -> None:
    cgroups.take()
    folder = cgroups.folder
    old = folder.with_name("agentrl-sandbox-99999999-0")
    (old / "run-1").mkdir(parents=True)
    cgroups.close()
    assert not folder.exists()
    again = open_memory_cgroups()
    assert again is not None
    again.close()
    assert not old.exists()


def test_the_second_version(tmp_path: Path) -> None:
    cgroup = MemoryCgroup(tmp_path / "run", 2)
    cgroup.limit(100)
    cgroup.add(1)
    written = {path.name: path.read_text() for path in (tmp_path / "run").iterdir()}
    assert written == {
        "memory.max": str(100 << 20),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "cgroup.procs": "1",
    }
    (tmp_path / "run" / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 0\noom_group_kill 0\n")
    assert cgroup.excess is None
    (tmp_path / "run" / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 3\noom_group_kill 1\n")
    assert cgroup.excess == "it used more than 100 MB of memory"


def test_where_cgroups_of_the_second_version_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearest first; a cgroup with other processes in it can have no limited ones below."""
    own = tmp_path / "user.slice" / "app.slice" / "shell.scope"
    own.mkdir(parents=True)
    for folder, gives, processes in (
        (own, "", f"1\n{os.getpid()}\n"),
        (own.parent, "memory pids", ""),
        (own.parents[1], "", ""),
        (tmp_path, "cpu memory", ""),
    ):
        (folder / "cgroup.subtree_control").write_text(gives)
        (folder / "cgroup.procs").write_text(processes)
    cgroup, mounts = tmp_path / "cgroup", tmp_path / "mountinfo"
    cgroup.write_text("0::/user.slice/app.slice/shell.scope\n")
    mounts.write_text(f"30 23 0:26 / {tmp_path} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n")
    monkeypatch.setattr(memory_cgroup, "_OWN", (cgroup, mounts))
    assert memory_cgroup.possible_parents()[:2] == [(own.parent, 2), (tmp_path, 2)]
    (own / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert memory_cgroup.possible_parents()[0] == (own, 2)
    assert (own / "agentrl-server" / "cgroup.procs").read_text() == str(os.getpid())
    assert (own / "cgroup.subtree_control").read_text() == "+memory"


def test_a_machine_without_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_cgroup, "_OWN", (Path("/no/such/file"), Path("/no/such/file")))
    assert open_memory_cgroups() is None
