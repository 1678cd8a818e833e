"""Profiled steps: traces of every process, a window for Nsight, a history of GPU memory; and Ray's timeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from simulated_cuda import simulated_cuda

from agentrl.config.root import RunConfig
from agentrl.errors import WorkerError
from agentrl.observability import profiler
from agentrl.observability.profiler import ProcessProfiler
from agentrl.single_controller import Dispatch, ResourcePool, WorkerGroup, create_worker_group, register
from agentrl.single_controller.named_range import named_range
from agentrl.single_controller.ray_runtime import init_ray
from agentrl.trainer.metrics import StageTimer
from agentrl.trainer.profiling import StepProfiler
from agentrl.workers.profiled import ProfiledWorker


class Adder(ProfiledWorker):
    """Works a little."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.role = config, "actor"

    @register(Dispatch.ONE_TO_ALL)
    def add(self) -> float:
        return float((torch.ones(100, 100) @ torch.ones(100, 100)).sum())

    @register(Dispatch.ONE_TO_ALL)
    def fail(self) -> None:
        raise ValueError("as told")


def run_config(folder: Path, **trainer: Any) -> RunConfig:
    return RunConfig.model_validate(
        {"trainer": {"backend": "local", "default_local_dir": str(folder), "device": "cpu", **trainer}}
    )


def slices(file: Path) -> set[str]:
    """Names in a Chrome trace."""
    return {event["name"] for event in json.loads(file.read_text())["traceEvents"] if event.get("ph") == "X"}


def play(config: RunConfig, group: WorkerGroup, steps: int, method: str = "add") -> None:
    profile = StepProfiler(config, steps)
    for step in range(1, steps + 1):
        with profile(step, [group]), StageTimer()("update_actor"):
            getattr(group, method)()


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_steps_that_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = run_config(tmp_path, profile_steps=[2, 9])
    with create_worker_group("local", ResourcePool([1]), Adder, config) as group:
        play(config, group, 3)
    assert files(tmp_path) == ["profile/step_2/rank_0.json"]
    assert {"update_actor", "add", "aten::mm"} <= slices(tmp_path / "profile/step_2/rank_0.json")
    assert "trainer.profile_steps: the run ends at step 3, before [9]" in caplog.text


def test_no_step_is_named(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    with create_worker_group("local", ResourcePool([1]), Adder, config) as group:
        play(config, group, 2)
    assert files(tmp_path) == []


def test_a_folder_of_its_own_and_a_step_that_fails(tmp_path: Path) -> None:
    """What the step did until then is written, and its error stays the one that is raised."""
    config = run_config(tmp_path, profile_steps=[1], profile_dir=str(tmp_path / "own"))
    with create_worker_group("local", ResourcePool([1]), Adder, config) as group:
        with pytest.raises(ValueError, match="as told"):
            play(config, group, 1, "fail")
        assert files(tmp_path) == ["own/step_1/rank_0.json"]
        play(config, group, 1)  # and another profile can begin


def test_a_folder_that_cannot_be_written_costs_only_the_profile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "profile").write_text("no folder")
    config = run_config(tmp_path, profile_steps=[1])
    with create_worker_group("local", ResourcePool([1]), Adder, config) as group:
        play(config, group, 2)
    assert "step 1: its profile is not written" in caplog.text


@pytest.mark.slow
def test_ranks_of_ray_and_its_timeline(tmp_path: Path) -> None:
    """Two ranks and a reference are in tests/e2e/test_first_run.py."""
    config = run_config(tmp_path, profile_steps=[1], backend="ray")
    timeline = tmp_path / "out" / "timeline.json"
    with (
        init_ray(num_cpus=1, timeline=str(timeline)),
        create_worker_group("ray", ResourcePool([1]), Adder, config) as group,
    ):
        play(config, group, 2)
        with pytest.raises(WorkerError, match="as told"):
            play(config, group, 1, "fail")
    assert files(tmp_path / "profile") == ["step_1/actor_rank_0.json", "step_1/driver.json"]
    assert "fail" in slices(tmp_path / "profile/step_1/actor_rank_0.json")
    assert "update_actor" in slices(tmp_path / "profile/step_1/driver.json")
    assert "submit_task" in {event["name"] for event in json.loads(timeline.read_text())}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: what CUDA is told is not recorded")
    with simulated_cuda(monkeypatch) as labels:
        yield labels.profiled


@pytest.mark.parametrize("tool", ["nsys", "auto"])
def test_nsight_gets_a_window_and_ranges(
    tool: Any, told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(profiler.UNDER_NSIGHT, "1")
    config = run_config(tmp_path, profile_steps=[2], profile_tool=tool)
    with create_worker_group("local", ResourcePool([1]), Adder, config) as group:
        play(config, group, 2)
    step = ["range_push update_actor", "range_push add", "range_pop", "range_pop"]
    assert told == [*step, "start", *step, "stop"]
    assert files(tmp_path) == []


def test_a_history_of_the_memory(told: list[str], tmp_path: Path) -> None:
    one = ProcessProfiler("torch_memory", tmp_path / "step_1" / "actor_rank_0")
    one.start()
    with named_range("update_actor"):
        pass
    one.stop()
    assert (tmp_path / "step_1" / "actor_rank_0.pickle").read_bytes() == b"snapshot"
    assert files(tmp_path) == ["step_1/actor_rank_0.pickle"]
    assert [line.partition(" ")[0] for line in told if "range" not in line] == [
        *("_record_memory_history", "_dump_snapshot", "_record_memory_history")
    ]
    assert told[0] == "_record_memory_history max_entries=100000"
    assert told[-1] == "_record_memory_history enabled=None"


def test_a_range_ends_when_its_work_fails(told: list[str]) -> None:
    def work() -> None:
        with named_range("update_actor"):
            raise ValueError("as told")

    with pytest.raises(ValueError, match="as told"):
        work()
    assert told == ["range_push update_actor", "range_pop"]
