"""A service continues the trace of its client: in its log, and at a collector where one is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from otlp_collector import Collector, collecting
from prometheus_client import CollectorRegistry

from agentrl.services.common import request_traces
from agentrl.services.common.request_traces import Parent, parent_of
from agentrl.services.common.standard_routes import add_standard_routes

Running = Callable[[FastAPI], AbstractContextManager[httpx.Client]]
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-01"}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    request_traces.traces_of.cache_clear()
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
        yield found
        traces = request_traces.traces_of("test")
        assert traces is not None
        traces.close()
    request_traces.traces_of.cache_clear()


def make_app() -> FastAPI:
    app = FastAPI(title="a service")

    @app.get("/items/{name}")
    async def item(name: str) -> str:
        return name

    @app.get("/broken")
    async def broken() -> None:
        raise KeyError("as told")

    health: dict[str, Any] = {}
    add_standard_routes(
        *(app,), service="test", token=None, registry=CollectorRegistry(), health=lambda: health, not_ready=lambda: None
    )
    return app


def test_spans_continue_the_clients(running: Running, collector: Collector) -> None:
    with running(make_app()) as client:
        assert client.get("/items/a", headers=SAMPLED).status_code == 200
        client.get("/items/b", headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})  # the client does not sample it
        client.get("/health", headers=SAMPLED)
        assert client.get("/broken").status_code == 500
        first, second = collector.wait_for(2)
    assert (first.name, first.trace_id, first.parent_id) == ("GET /items/{name}", TRACE, SPAN)
    assert first.attributes == {
        "http.request.method": "GET",
        "http.route": "/items/{name}",
        "http.response.status_code": 200,
    }
    assert first.resource["service.name"] == "agentrl-test"
    assert 0 < first.seconds < 60
    assert (second.name, second.parent_id) == ("GET /broken", "")
    assert second.trace_id != TRACE


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (f"00-{TRACE}-{SPAN}-01", Parent(TRACE, SPAN, True)),
        (f"01-{TRACE}-{SPAN}-02-more", Parent(TRACE, SPAN, False)),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        ("yes", None),
    ],
)
def test_the_header_is_read_as_the_standard_says(header: str, wanted: Parent | None) -> None:
    assert parent_of({"headers": [(b"accept", b"*"), (b"traceparent", header.encode())]}) == wanted


SERVICE = """
import sys
sys.path.insert(0, {tests!r})
from test_request_traces import make_app, SAMPLED
from agentrl.services.common import request_traces
from agentrl.services.common.logs import set_up_logs
from starlette.testclient import TestClient
set_up_logs()
request_traces.CLOSE_TIMEOUT_S = 0.5
with TestClient(make_app()) as client:
    print(client.get("/items/a", headers=SAMPLED).status_code)
print("opentelemetry.sdk" in sys.modules)
"""


@pytest.mark.parametrize(
    ("variables", "loaded", "told"),
    [
        ({}, False, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, True, "traces cannot be sent"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            False,
            "no traces are sent",
        ),
    ],
)
def test_a_process_sends_nothing_unless_asked_and_waits_for_no_collector(
    variables: dict[str, str], loaded: bool, told: str | None
) -> None:
    """A collector that cannot be reached is told once and holds up neither requests nor the end of the process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    folders = os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "..", "..")
    environment |= {**variables, "PYTHONPATH": os.pathsep.join([*folders, environment.get("PYTHONPATH", "")])}
    code = SERVICE.format(tests=folders[0])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60, check=True
    )
    assert done.stdout.split() == ["200", str(loaded)]
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    (request,) = [line for line in lines if line["event"] == "request"]
    assert (request["path"], request["trace_id"]) == ("/items/a", TRACE)
    assert [line["event"] for line in lines if line["level"] == "warning"] == ([told] if told else [])
