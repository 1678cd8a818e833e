"""Traces of steps: to a file and to a collector where somebody asks, and nothing anywhere else."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from otlp_collector import Collector, collecting

from agentrl import otel
from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError, WorkerError
from agentrl.observability import otlp
from agentrl.timeline import TRAJECTORY, Timeline, current_trace, span_here
from agentrl.trainer.metrics import StageTimer
from agentrl.trainer.tracing import StepTracing

NOBODY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


class Processes:
    """One trajectory of an agent-loop worker in each step."""

    def __init__(self, ranks: Exception | None = None) -> None:
        self.timelines: list[tuple[str, Timeline]] = []
        self.ranks = ranks
        self.asked: list[float | None] = []

    def roll_out(self) -> None:
        trace = current_trace()
        if trace is None:
            return
        timeline = Timeline(trace)
        with timeline.span(TRAJECTORY, "row 0") as whole:
            with timeline.span("generate", "turn 1"):
                pass
            whole.error = "TIMEOUT"
        self.timelines.append(("agent loops 0", timeline))

    def take_timelines(self, ranks_timeout_s: float | None) -> list[tuple[str, Timeline]]:
        self.asked.append(ranks_timeout_s)
        if self.ranks is not None and ranks_timeout_s is not None:
            raise self.ranks
        taken, self.timelines = self.timelines, []
        return taken


def tracing(folder: Path, **trainer: Any) -> StepTracing:
    return StepTracing(RunConfig.model_validate({"trainer": {"default_local_dir": str(folder), **trainer}}))


def play(traced: StepTracing, steps: int, processes: Processes | None = None) -> Processes:
    processes = processes or Processes()
    for step in range(1, steps + 1):
        with traced(step, processes):
            timer = StageTimer()
            with timer("gen"):
                processes.roll_out()
            with timer("update_actor"), span_here("update", "update_actor"):
                pass
    traced.close()
    return processes


def names(file: Path) -> list[str]:
    return sorted(event["name"] for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X")


STEP = sorted(["step", "gen", "update_actor", "update", TRAJECTORY, "generate"])


def test_a_collector_gets_every_step(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer secret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    play(tracing(tmp_path, otlp_endpoint=collector.url + "/", experiment_name="mine"), 2)
    spans = collector.wait_for(2 * len(STEP))
    assert sorted(span.name for span in spans) == sorted(2 * STEP)
    traces = {span.trace_id for span in spans}
    assert len(traces) == 2
    for trace in traces:
        by_name = {span.name: span for span in spans if span.trace_id == trace}
        parents = {"gen": "step", "update_actor": "step", "update": "update_actor", TRAJECTORY: "gen"}
        parents["generate"] = TRAJECTORY
        assert {name: span.parent_id for name, span in by_name.items() if name != "step"} == {
            name: by_name[parent].span_id for name, parent in parents.items()
        }
        assert by_name["step"].parent_id == ""
        assert all(abs(span.start - time.time()) < 600 for span in by_name.values())
        assert (by_name[TRAJECTORY].error, by_name[TRAJECTORY].attributes) == ("TIMEOUT", {"agentrl.detail": "row 0"})
        assert by_name[TRAJECTORY].resource["agentrl.process"] == "agent loops 0"
    resource = spans[0].resource
    assert (resource["service.name"], resource["agentrl.run"]) == ("agentrl", "mine")
    assert resource["deployment.environment"] == "test"
    assert collector.headers[0]["authorization"] == "Bearer secret"
    assert not list(tmp_path.iterdir())


def test_the_variables_alone_name_a_collector(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-run")
    play(tracing(tmp_path), 1)
    assert {span.resource["service.name"] for span in collector.wait_for(len(STEP))} == {"my-run"}


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        {"OTEL_TRACES_SAMPLER": "always_off"},
    ],
)
def test_the_variables_say_that_nothing_is_sent(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, **variables}.items():
        monkeypatch.setenv(name, value)
    processes = play(tracing(tmp_path), 2)
    assert collector.spans == processes.asked == []


def test_nobody_asks(tmp_path: Path) -> None:
    processes = play(tracing(tmp_path, profile_steps=[1], profile_tool="torch"), 2)
    assert processes.asked == list(tmp_path.iterdir()) == []


def test_the_file_of_a_step_needs_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not asked for is not even imported."""
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # an import of it fails
    play(tracing(tmp_path, profile_steps=[2], profile_tool="spans"), 3)
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert file == tmp_path / "profile" / "step_2" / "trace.json"
    assert names(file) == STEP


def test_a_step_that_fails_is_traced_and_no_rank_is_waited_for(tmp_path: Path) -> None:
    traced, processes = tracing(tmp_path, profile_steps=[1], profile_tool="spans"), Processes()

    def fail() -> None:
        with traced(1, processes):
            processes.roll_out()
            raise ValueError("as told")

    with pytest.raises(ValueError, match="as told"):
        fail()
    assert processes.asked == [None]
    events = json.loads((tmp_path / "profile/step_1/trace.json").read_text())["traceEvents"]
    assert {event["name"]: event["args"].get("error") for event in events if event["ph"] == "X"} == {
        "step": "ValueError",
        TRAJECTORY: "TIMEOUT",
        "generate": None,
    }


def test_ranks_that_do_not_answer_and_a_full_disk_cost_only_the_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    traced = tracing(tmp_path, profile_steps=[1, 2], profile_tool="spans")
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "step_2").write_text("no folder")
    play(traced, 2, Processes(ranks=WorkerError("rank 1 is gone")))
    assert names(tmp_path / "profile/step_1/trace.json") == ["gen", "step", "update", "update_actor"]
    assert "a step's trace lacks the other processes: rank 1 is gone" in caplog.text
    assert "step 2: its trace is not written" in caplog.text


def test_a_collector_that_cannot_be_reached_costs_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More steps than may wait: none of them waits (to send one takes 10 s), and the end does for a moment only."""
    monkeypatch.setattr(otlp, "CLOSE_TIMEOUT_S", 0.3)
    traced = tracing(tmp_path, otlp_endpoint=NOBODY)
    began = time.monotonic()
    processes = Processes()
    for step in range(1, otlp.MOST_WAITING + 4):
        with traced(step, processes):
            processes.roll_out()
    traced.close()
    assert time.monotonic() - began < 60
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert lines[0].startswith("traces cannot be sent, and the run goes on without them: ")
    assert not [thread for thread in threading.enumerate() if thread.name == "agentrl-traces"]


def test_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(otel, "is_installed", lambda: False)
    with pytest.raises(ConfigError, match=r"trainer.otlp_endpoint: needs the package .* 'agentrl\[traces\]'"):
        tracing(tmp_path, otlp_endpoint=NOBODY)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", NOBODY)
    assert play(tracing(tmp_path), 1).asked == []
    assert "needs the package" in caplog.text
