"""A run that is watched in every way: traces in a file and at a collector, metrics for Prometheus, timelines."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from acting_tracker import At
from fastapi import FastAPI
from otlp_collector import Received, collecting
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from runs import Run, Workspace

from agentrl.services.common import request_traces
from agentrl.services.common.http_server import listen
from agentrl.services.common.standard_routes import add_standard_routes
from agentrl.trainer.metrics_page import MetricsPage
from agentrl.trainer.run import run_training

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana" / "agentrl.json"
OF_OTHER_ENGINES = {
    "sglang:generation_tokens_total",
    *("vllm:num_requests_running", "vllm:num_requests_waiting"),
    *("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
}
"""What the dashboard asks of engines that the embedded one does not name so."""
PLUGINS = '''
from agentrl.interfaces import AgentLoopBase, BaseTool, ServiceClient
from agentrl.types import AgentLoopOutput, StopReason, ToolCall, ToolResponse


class Ask(BaseTool):
    """Asks a service."""

    @classmethod
    def default_schema(cls):
        return {"type": "function", "function": {"name": "ask", "parameters": {"type": "object"}}}

    async def execute(self, arguments):
        client = ServiceClient(self.config["url"])
        client.scope = self.scope
        return ToolResponse(str(await client.post("/echo", {"number": 7})))


class Loop(AgentLoopBase):
    """One turn, and a call whatever it says."""

    async def run(self, sampling_params, sample):
        ids = self.context.renderer.render_prompt(sample.prompt, self.context.tools.schemas)
        trajectory = self.context.new_trajectory(ids)
        trajectory.append_completion(await self.context.generate(trajectory.context_ids, sampling_params))
        await self.context.tools.execute([ToolCall("ask", {})])
        return AgentLoopOutput(
            prompt_ids=trajectory.prompt_ids,
            response_ids=trajectory.response_ids,
            response_mask=trajectory.response_mask,
            response_logprobs=trajectory.rollout_log_probs,
            weight_versions=trajectory.weight_versions,
            num_turns=2,
            stop_reason=StopReason.COMPLETED,
        )
'''
NAMED = {"step", "trajectory", "generate", "tool", "score", "update", "sync"}
PHASES = {"gen", "reward", "old_log_prob", "adv", "update_actor", "update_weights", "testing", "save_checkpoint"}


@dataclass
class Watched:
    """The run and what came of it."""

    run: Run
    spans: list[Received]
    page: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)


def service() -> FastAPI:
    app = FastAPI(title="a service")

    @app.post("/echo")
    async def echo(body: dict[str, int]) -> dict[str, int]:
        return body

    add_standard_routes(
        *(app,), service="test", token=None, registry=CollectorRegistry(), health=dict, not_ready=lambda: None
    )
    return app


@pytest.fixture(scope="module")
def watched(workspace: Workspace) -> Iterator[Watched]:
    """Two steps in one process; the second is filed, and its beginning is when the page of metrics is read."""
    request_traces.traces_of.cache_clear()
    with pytest.MonkeyPatch.context() as patch, collecting() as collector, listen("127.0.0.1", 0) as listener:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)  # the service's, and so the run's
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
        server = uvicorn.Server(uvicorn.Config(service(), log_config=None, access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        folder = workspace.folder / "plugins"
        folder.mkdir()
        (folder / "plugins.py").write_text(PLUGINS)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        (folder / "tools.yaml").write_text(f"tools: [{{class_name: 'plugins.py:Ask', config: {{url: '{url}'}}}}]")
        (folder / "loops.yaml").write_text("- {name: mine, _target_: 'plugins.py:Loop'}")
        run = workspace.run(
            "watched",
            data__val_files=str(workspace.val),
            data__max_prompt_length=640,
            actor_rollout_ref__rollout__agent__agent_loop_config_path=str(folder / "loops.yaml"),
            actor_rollout_ref__rollout__agent__default_agent_loop="mine",
            actor_rollout_ref__rollout__multi_turn__tool_config_path=str(folder / "tools.yaml"),
            trainer__val_before_train=False,
            trainer__test_freq=1,
            trainer__save_freq=1,
            trainer__profile_steps=[2],
            trainer__profile_tool="spans",
            trainer__prometheus_address=0,
        )
        found = Watched(run, [])
        at = At(2, "update_actor", lambda: found.page.update(samples(pages[0].url)))
        pages: list[MetricsPage] = []
        keep_names = MetricsPage.on_start
        patch.setattr(MetricsPage, "on_start", lambda page, info: (pages.append(page), keep_names(page, info)))
        run_training(run.config, [at])
        found.spans = collector.wait_for(100)
        server.should_exit = True
        thread.join()
        yield found
    request_traces.traces_of.cache_clear()


def samples(url: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = httpx.get(url, trust_env=False, timeout=60).raise_for_status().text
    metrics = text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for metric in metrics for s in metric.samples}


def events_of(run: Run) -> list[dict[str, Any]]:
    trace = json.loads((run.folder / "profile" / "step_2" / "trace.json").read_text())
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_the_file_holds_every_span_of_the_step(watched: Watched) -> None:
    assert [path.name for path in (watched.run.folder / "profile").rglob("*.json")] == ["trace.json"]
    events = events_of(watched.run)
    assert not (NAMED | PHASES) - {event["name"] for event in events}
    by_id = {event["args"]["span_id"]: event for event in events}
    assert len(by_id) == len(events)
    assert len({event["args"]["trace_id"] for event in events}) == 1
    for event in events:
        around = by_id.get(event["args"].get("parent_id", ""))
        assert (around is None) == (event["name"] == "step")
        assert event["dur"] >= 0
        if around is not None:
            assert around["ts"] - 2000 <= event["ts"]  # another process's clock
            assert event["ts"] + event["dur"] <= around["ts"] + around["dur"] + 2000
    within = {(event["name"], by_id[event["args"]["parent_id"]]["name"]) for event in events if event["name"] != "step"}
    assert {(phase, "step") for phase in PHASES} <= within
    assert {("trajectory", "gen"), ("trajectory", "testing"), ("update", "update_actor")} <= within
    assert {("generate", "trajectory"), ("tool", "trajectory"), ("score", "trajectory")} <= within
    assert {("sync", "update_weights"), ("sync: pause", "sync"), ("sync: load", "sync")} <= within


def test_spans_on_a_track_are_apart_or_within_each_other(watched: Watched) -> None:
    """As Perfetto wants it: what overlaps in part is not shown right."""
    events = events_of(watched.run)
    assert {event["pid"] for event in events} == {1, 2}
    assert len({event["tid"] for event in events if event["pid"] == 2}) >= 8  # trajectories at the same time
    for track in {(event["pid"], event["tid"]) for event in events}:
        ends: list[float] = []
        own = [event for event in events if (event["pid"], event["tid"]) == track]
        for event in sorted(own, key=lambda event: (event["ts"], -event["dur"])):
            while ends and ends[-1] <= event["ts"] + 1e-3:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + 1e-3
            ends.append(event["ts"] + event["dur"])


def test_the_collector_has_both_steps_and_the_services_part_of_them(watched: Watched) -> None:
    steps = [span for span in watched.spans if span.name == "step"]
    assert [span.attributes["agentrl.detail"] for span in sorted(steps, key=lambda span: span.start)] == [
        "step 1",
        "step 2",
    ]
    for step in steps:
        own = [span for span in watched.spans if span.trace_id == step.trace_id]
        assert not (NAMED | PHASES) - {span.name for span in own}
        calls = {span.span_id: span for span in own if span.name == "tool"}
        asked = [span for span in own if span.name == "POST /echo"]
        assert len(asked) == len(calls) == 8 + 2  # of training and of validation
        assert {span.parent_id for span in asked} == set(calls)
        assert {span.resource["service.name"] for span in asked} == {"agentrl-test"}
    filed = {event["args"]["span_id"] for event in events_of(watched.run)}
    assert filed <= {span.span_id for span in watched.spans}


def test_dumps_have_timelines(watched: Watched) -> None:
    for row in watched.run.rollouts(1):
        assert [span["name"] for span in row["timeline"]] == ["generate", "tool", "score"]


def test_the_dashboard_names_what_there_is(watched: Watched) -> None:
    """Every metric and every name of the trainer's that a panel asks for is on a run's page, or SGLang's, or vLLM's."""
    there = {name for name, _ in watched.page} | OF_OTHER_ENGINES
    newest = {dict(labels)["name"] for name, labels in watched.page if name == "agentrl_metric"}
    panels = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) > 30
    for expression in expressions:
        metrics = re.findall(r"([a-z_]+(?::[a-z_]+)?)\{", expression)
        assert metrics
        assert set(metrics) <= there, expression
        for operator, name in re.findall(r'name(=~?)"([^"]+)"', expression):
            found = [each for each in newest if (each == name if operator == "=" else re.fullmatch(name, each))]
            assert found, expression
    engines = {dict(labels)["engine"] for name, labels in watched.page if name == "agentrl_engine_up"}
    assert len(engines) == 1
    assert watched.page["agentrl_engine_up", frozenset({("engine", *engines)})] == 1
    assert watched.page["agentrl_router_answers_total", frozenset({("engine", *engines)})] >= 8
