"""A real model on two SGLang servers that the run starts itself, of which one is killed and one hangs on the way."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from needs import python_with
from runs import Process, Run, finished, started

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(3000)]


def servers(process: Process) -> list[psutil.Process]:
    """The main process of each SGLang server, in the order of their ports."""
    found = {}
    for each in process.family():
        with contextlib.suppress(psutil.Error):
            words = each.cmdline()
            if words[1:3] == ["-m", "sglang.launch_server"]:
                found[int(words[words.index("--port") + 1])] = each
    return [found[port] for port in sorted(found)]


def scheduler(server: psutil.Process) -> psutil.Process:
    """The process of a server that computes."""
    (found,) = [each for each in server.children(recursive=True) if "scheduler" in " ".join(each.cmdline())]
    return found


def until(process: Process, condition: Callable[[], bool]) -> None:
    """Wait until something has happened in a run that goes on."""
    deadline = time.monotonic() + 1500
    while not condition():
        if process.popen.poll() is not None:
            pytest.fail(process.finish()[1])
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.mark.parametrize("weight_sync", ["disk", "distributed"])
def test_two_steps_while_one_server_is_killed_and_one_hangs(
    weight_sync: str, smollm2_folder: Path, shared_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = python_with("sglang")
    source = str(shared_folder / "data/gsm8k")
    code, output = finished("data", "gsm8k", "--variant", "tool", "--source", source, "--out", str(tmp_path))
    assert code == 0, output
    folder = tmp_path / "run"
    settings = {
        "actor_rollout_ref.model.path": smollm2_folder,
        "data.train_files": tmp_path / "train.parquet",
        "data.train_batch_size": 2,
        "data.max_response_length": 96,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 1,  # two updates a step: old log-probs are compared
        "actor_rollout_ref.actor.entropy_coeff": 0.01,  # a gradient where all rewards are equal
        "actor_rollout_ref.rollout.name": "sglang",
        "actor_rollout_ref.rollout.server.python": python,
        "actor_rollout_ref.rollout.server.launch": 2,
        "actor_rollout_ref.rollout.server.start_timeout_s": 900,
        "+actor_rollout_ref.rollout.engine_kwargs.sglang.max_total_tokens": 8192,
        "+actor_rollout_ref.rollout.engine_kwargs.sglang.mem_fraction_static": 0.2,
        "actor_rollout_ref.rollout.weight_sync": weight_sync,
        "actor_rollout_ref.rollout.max_failure_rate": 0.0,
        "trainer.backend": "ray",
        "trainer.default_local_dir": folder,
        "trainer.rollout_data_dir": folder / "rollouts",
    }
    began = time.monotonic()
    with started("train", "gsm8k_tool_smollm2", *(f"{key}={value}" for key, value in settings.items())) as process:
        logs = [folder / "logs" / f"engine_{number}.log" for number in range(2)]

        def both_generate() -> bool:  # a prompt of the run: those of health checks have one token
            said = [log.read_text(encoding="utf-8", errors="replace") if log.exists() else "" for log in logs]
            return all(re.search(r"Prefill batch.*#new-token: \d{2,}", each) for each in said)

        until(process, both_generate)
        killed, hung = servers(process)
        killed.kill()
        until(process, lambda: (folder / "metrics.jsonl").exists() and len(Run(tmp_path, folder).metrics) == 1)
        scheduler(hung).suspend()
        code, output = process.finish(2400)
    assert code == 0, output
    run = Run(tmp_path, folder)
    one, two = run.metrics
    with capsys.disabled():
        sys.stdout.write(f"\n{weight_sync}: {time.monotonic() - began:.0f} s\n")
        for step, row in ((1, one), (2, two)):
            stages = ("gen", "update_actor", "update_weights", "step")
            shown = ", ".join(f"{stage} {row[f'timing_s/{stage}']:.1f}" for stage in stages)
            sys.stdout.write(f"step {step}: {shown} s\n")
    assert "SIGKILL (9)" in output
    assert "gives no answer to its health check" in output
    for metrics in (one, two):
        assert metrics["training/rollout_probs_diff_max"] < 1e-3
        assert metrics["rollout/env_error_rate"] == 0
        assert metrics["actor/grad_norm"] > 0
    versions = {v for step in (1, 2) for row in run.rollouts(step) for v in row["weight_versions"] if v >= 0}
    assert versions == {0, 1}
