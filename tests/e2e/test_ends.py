"""How runs end when something goes wrong: one readable message, the right exit code, nothing left running."""

from __future__ import annotations

import re
import resource
import socket
from pathlib import Path

import psutil
import pytest
from runs import Process, Run, Workspace, finished, kill_listener, serving, started, wait_for_steps

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
MANY = 1000


def long_run(workspace: Workspace, name: str, **changes: object) -> Run:
    return workspace.run(name, trainer__total_training_steps=MANY, **changes)


def engine_processes(process: Process) -> list[psutil.Process]:
    return [p for p in process.family() if "agentrl.inference.embedded" in p.cmdline()]


@pytest.mark.parametrize("backend", [pytest.param("ray", marks=pytest.mark.slow), "local"])
def test_ctrl_c_stops_clean_and_the_run_goes_on_later(workspace: Workspace, engine: str, backend: str) -> None:
    # On Ray with an engine of its own, so that there is something that could be left running.
    addresses = None if backend == "ray" else [engine]
    changes = {"trainer__save_freq": MANY, "actor_rollout_ref__rollout__server__addresses": addresses}
    run = long_run(workspace, f"stopped_{backend}", trainer__backend=backend, **changes)
    with started("train", str(run.recipe)) as process:
        wait_for_steps(run, 2, process)
        process.press_ctrl_c()
        code, output = process.finish()
    assert code == 130, output
    assert "Traceback" not in output
    last = max(run.steps)
    assert (run.folder / "latest_checkpointed_iteration.txt").read_text() == str(last)
    run.go_on(last + 1)
    assert sorted(run.steps) == list(range(1, last + 2))


def test_a_dead_engine_is_started_again_with_the_weights_of_the_run(workspace: Workspace) -> None:
    run = long_run(workspace, "engine_restarted")
    with started("train", str(run.recipe)) as process:
        wait_for_steps(run, 2, process)
        for engine in engine_processes(process):
            engine.kill()
        seen = max(run.steps)
        wait_for_steps(run, seen + 3, process)
        process.press_ctrl_c()
        code, output = process.finish()
    assert code == 130, output
    assert "was killed by SIGKILL (9)" in output
    assert all(row["training/rollout_probs_diff_max"] < 1e-5 for row in run.metrics)
    assert [int(row["step"]) for row in run.metrics] == list(range(1, len(run.metrics) + 1))


@pytest.mark.slow
def test_a_dead_engine_that_is_not_ours_ends_the_run(workspace: Workspace) -> None:
    with serving(workspace.model) as address:
        changes = {"server__addresses": [address], "server__retries": 1}
        run = long_run(workspace, "engine_gone", **{f"actor_rollout_ref__rollout__{k}": v for k, v in changes.items()})
        with started("train", str(run.recipe)) as process:
            wait_for_steps(run, 1, process)
            kill_listener(address)
            code, output = process.finish()
    assert code == 3, output
    assert address in output
    assert "Traceback" not in output


def test_a_taken_port_is_told(workspace: Workspace) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = workspace.run("port_taken", actor_rollout_ref__rollout__server__port=port)
        code, output = finished("train", str(run.recipe))
    assert code == 3, output
    assert re.search(rf"port {port} .* cannot be used", output)
    assert "Traceback" not in output


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_checkpoint(workspace: Workspace, engine: str) -> None:
    changes = {"actor_rollout_ref__rollout__server__addresses": [engine]}
    run = long_run(workspace, "disk_full", trainer__save_freq=1, **changes)
    with started("train", str(run.recipe)) as process:
        wait_for_steps(run, 1, process)
        first = run.folder / "global_step_1" / "actor"
        weights = (first / "huggingface" / "model.safetensors").stat().st_size
        shards = sum(file.stat().st_size for file in first.glob("*.distcp"))
        assert weights < shards
        limit = (weights + shards) // 2
        resource.prlimit(process.popen.pid, resource.RLIMIT_FSIZE, (limit, limit))
        code, output = process.finish()
    assert code == 4, output
    assert re.search(r"cannot write checkpoint .*The one of step \d+ is untouched", output.replace("\n", " "))
    assert "Traceback" not in output
    last = (run.folder / "latest_checkpointed_iteration.txt").read_text()
    assert not list(run.folder.glob(".part_*"))
    run.go_on(int(last) + 1)
    assert sorted(run.steps) == list(range(1, int(last) + 2))


def test_a_missing_file_is_told_before_anything_starts(workspace: Workspace, tmp_path: Path) -> None:
    run = workspace.run("missing", data__train_files=str(tmp_path / "nowhere.parquet"))
    code, output = finished("train", str(run.recipe))
    assert code == 2, output
    assert "nowhere.parquet: got no such file" in output.replace("\n", " ")
    assert "Traceback" not in output
    assert not run.folder.exists()


def test_an_alarm_that_is_to_stop_the_run(workspace: Workspace, engine: str) -> None:
    """The entropy of two steps is never the same, so one of these rings at the second."""
    health = {"window": 1, "action": "stop", "entropy_falls_to": 0.999999, "entropy_rises_to": 1.000001}
    run = long_run(
        workspace,
        "alarmed",
        trainer__health=health,
        trainer__save_freq=MANY,
        actor_rollout_ref__rollout__server__addresses=[engine],
    )
    code, output = finished("train", str(run.recipe))
    assert code == 3, output
    assert "stopped by trainer.health.action: stop. the policy" in output
    assert "Traceback" not in output
    assert run.metrics[-1]["health/alarms"] == 1
    assert (run.folder / "latest_checkpointed_iteration.txt").read_text() == str(max(run.steps))
