"""The demo from its command line, shrunken to a few steps: every file it promises, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli import app

SHRUNKEN = [
    "--warm-start-steps=4",
    "trainer.total_training_steps=2",
    "trainer.test_freq=2",
    "data.train_batch_size=4",
    "data.val_max_samples=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.embedded.threads=1",
    "ray_init.num_cpus=2",
]
LAST_LINE = re.compile(r"demo: success \d\.\d\d -> \d\.\d\d, tool calls \d\.\d\d -> \d\.\d\d, \d+ s")


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from agentrl.cli import main; main()", "demo", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280, check=False)


@pytest.mark.timeout(600)
def test_the_whole_demo_shrunken(tmp_path: Path):
    first = demo("--out", str(tmp_path), *SHRUNKEN)
    assert first.returncode == 0, first.stderr
    assert LAST_LINE.fullmatch(first.stdout.rstrip().splitlines()[-1]), first.stdout
    assert "Warm start written" in first.stdout
    assert "tensorboard --logdir" in first.stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["rl_steps"] == 2
    assert summary["tokens_generated"] > 0
    assert (tmp_path / "progress.png").is_file()
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    assert (tmp_path / "run" / "global_step_2" / "actor" / "huggingface" / "model.safetensors").is_file()
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 2]


@pytest.mark.slow
def test_a_second_demo_finds_the_warm_start_of_the_first(tmp_path: Path):
    for says in ("written", "found"):
        done = demo("--out", str(tmp_path), *SHRUNKEN, "trainer.backend=local")
        assert done.returncode == 0, done.stderr
        assert f"Warm start {says}" in done.stdout
        assert LAST_LINE.fullmatch(done.stdout.rstrip().splitlines()[-1])


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["demo", *arguments])
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


def test_wrong_options_are_refused_before_the_warm_start(tmp_path):
    out = tmp_path / "demo"
    assert "Did you mean 'trainer.test_freq'" in refusal("--out", str(out), "trainer.test_freqs=1")
    for override in ("trainer.val_before_train=false", "trainer.test_freq=-1", "data.val_files=mine.parquet"):
        assert "compares before and after" in refusal("--out", str(out), override)
    assert "val_kwargs.n=1" in refusal("--out", str(out), "actor_rollout_ref.rollout.val_kwargs.n=2")
    assert "none.jsonl" in refusal("--out", str(out), "--from-gsm8k", str(tmp_path / "none.jsonl"))
    assert "--bogus" in refusal("--out", str(out), "--bogus")
    assert not (out / "warm_start").exists()
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "cannot write to" in refusal("--out", str(blocked / "demo"))


def test_the_numbers_of_an_earlier_demo_are_gone_before_the_next_begins(tmp_path):
    kept = tmp_path / "notes.txt"
    stale = [tmp_path / "summary.json", tmp_path / "run" / "metrics.jsonl", tmp_path / "run" / "global_step_9" / "x"]
    for path in [kept, *stale]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("old")
    refusal("--out", str(tmp_path), "--from-gsm8k", str(tmp_path / "none.jsonl"))
    assert not any(path.exists() for path in stale)
    assert kept.exists()


@pytest.mark.slow
def test_ctrl_c_in_the_warm_start_ends_with_130_and_leaves_nothing_half_made(tmp_path):
    command = [
        sys.executable,
        "-u",
        "-c",
        "from agentrl.cli import main; main()",
        "demo",
        "--prepare",
        "--warm-start-steps=150",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "warm_start" / "config.yaml").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "warm_start" / "huggingface").exists()


def test_help_names_the_options():
    result = CliRunner().invoke(app, ["demo", "--help"])
    assert result.exit_code == 0
    for option in ("--from-gsm8k", "--fresh", "--prepare", "--out"):
        assert option in result.output
