"""Each way of acting learns: its demo, as a user runs it, reaches a bar on rows that no stage trains on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from needs import needs_filter

from agentrl.services.sandbox.process_tree import adopting_orphans

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Bar:
    """What a run must reach."""

    success: float
    rise: float
    """Of held-out success."""
    second: str
    """Name of the second curve, which must rise to `second_after`."""
    second_after: float


BARS = {
    "calculator": Bar(0.95, 0.50, "tool_rate", 0.95),
    "search": Bar(0.85, 0.35, "tool_rate", 0.95),
    "python": Bar(0.80, 0.30, "tool_rate", 0.95),
    "interaction": Bar(0.80, 0.30, "second_right", 0.75),
}


def demo(folder: Path, name: str, *arguments: str) -> str:
    """Run a demo in a folder; it must leave no process and no temporary file behind. Returns what it printed."""
    command = [sys.executable, "-m", "agentrl", "demo", name, "--out", str(folder), *arguments, "ray_init.num_cpus=2"]
    with adopting_orphans(), tempfile.TemporaryDirectory() as temporary:  # not in `folder`: paths of sockets are short
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}  # torch's own, for later processes
        environment = {**os.environ, **cache, "HF_HUB_OFFLINE": "1", "TMPDIR": temporary}
        before = running_children()
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not running_children() - before
        assert not os.listdir(temporary)
    return done.stdout


def running_children() -> set[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return {child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE}


@pytest.mark.parametrize("name", BARS)
def test_a_way_of_acting_reaches_its_bar(tmp_path: Path, name: str) -> None:
    if name == "python":
        needs_filter()
    output, bar = demo(tmp_path, name), BARS[name]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["success_after"] >= bar.success, output
    assert summary["success_after"] - summary["success_before"] >= bar.rise, output
    assert summary[f"{bar.second}_after"] >= bar.second_after, output
    assert summary[f"{bar.second}_after"] > summary[f"{bar.second}_before"]


@pytest.mark.parametrize("name", BARS)
def test_a_demo_of_two_steps_has_its_files_and_leaves_nothing_running(tmp_path: Path, name: str) -> None:
    if name == "python":
        needs_filter()
    few = ["trainer.total_training_steps=2", "trainer.test_freq=2", "data.val_max_samples=8", "trainer.backend=local"]
    output = demo(tmp_path, name, "--warm-start-steps=4", *few)
    assert output.splitlines()[-1].startswith("demo: success 0.")
    assert (tmp_path / "progress.png").is_file()
    assert json.loads((tmp_path / "summary.json").read_text())["rl_steps"] == 2
