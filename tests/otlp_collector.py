"""A stand-in for an OpenTelemetry collector: a real HTTP server that decodes what it gets."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Received:
    """A span as it arrived."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    seconds: float
    start: float
    error: str
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Collector:
    """What came; `url` is its base address."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, count: int) -> list[Received]:
        """The spans, once there are at least `count`."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.spans) >= count, 60), f"{len(self.spans)} spans came"
            return list(self.spans)

    def take(self, body: bytes, headers: dict[str, str]) -> None:
        """Decode a request."""
        request = ExportTraceServiceRequest.FromString(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
        found = [
            Received(
                span.name,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                span.start_time_unix_nano / 1e9,
                span.status.message if span.status.code == 2 else "",
                {each.key: _value(each.value) for each in span.attributes},
                {each.key: _value(each.value) for each in group.resource.attributes},
            )
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
        with self.arrived:
            self.spans += found
            self.headers.append(headers)
            self.arrived.notify_all()


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take(body, {name.lower(): value for name, value in self.headers.items()})
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield collector
        server.shutdown()
