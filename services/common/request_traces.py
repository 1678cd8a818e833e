"""Continues the trace of a request by its header `traceparent` (W3C Trace Context).

The trace's id is in the log. Where the variables of OpenTelemetry name a collector, each request's span is sent there,
in the background: one that cannot be reached costs spans, and no request waits for it.
"""

from __future__ import annotations

import atexit
import logging
import re
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from starlette.types import Scope

from agentrl import otel
from agentrl.services.common.logs import log

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
CLOSE_TIMEOUT_S = 3.0


class Parent(NamedTuple):
    """The span of the client that asks."""

    trace_id: str
    span_id: str
    sampled: bool


def parent_of(scope: Scope) -> Parent | None:
    """The span that a request continues; None: it names none."""
    for name, value in scope["headers"]:
        if name == b"traceparent" and (found := _TRACEPARENT.fullmatch(value)):
            trace_id, span_id, flags = (part.decode() for part in found.groups())
            return Parent(trace_id, span_id, bool(int(flags, 16) & 1))
    return None


class RequestTraces:
    """Sends the spans of a service's requests.

    Args:
        service: its name.
    """

    def __init__(self, service: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create()  # `OTEL_SERVICE_NAME` counts
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": f"agentrl-{service}"}))
        self._told = _FirstLine()
        self._logger = logging.getLogger(OTLPSpanExporter.__module__)
        self._logger.addFilter(self._told)
        self._processor = BatchSpanProcessor(OTLPSpanExporter())
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        atexit.register(self.close)
        self._tracer: Tracer = provider.get_tracer("agentrl.services")

    def send(
        self, name: str, parent: Parent | None, began: float, seconds: float, said: Mapping[str, str | int]
    ) -> None:
        """Send the span of a request soon; returns at once.

        Args:
            name: method and route.
            parent: the client's span.
            began: Unix time.
            seconds: how long it took.
            said: attributes.
        """
        from opentelemetry.trace import SpanKind, Status, StatusCode

        start = int(began * 1e9)
        context = None if parent is None else _context_of(parent)
        span = self._tracer.start_span(name, context, SpanKind.SERVER, attributes=said, start_time=start)
        if int(said["http.response.status_code"]) >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(start + int(seconds * 1e9))

    def close(self) -> None:
        """Send what is left, but a collector that does not answer holds up no exit."""
        atexit.unregister(self.close)
        ending = threading.Thread(target=self._processor.shutdown, daemon=True)
        ending.start()
        ending.join(CLOSE_TIMEOUT_S)
        if not ending.is_alive():  # else its lines are still kept away
            self._logger.removeFilter(self._told)


@lru_cache
def traces_of(service: str) -> RequestTraces | None:
    """Sends spans, if the variables of OpenTelemetry name a collector; one for a process."""
    if not otel.names_collector():
        return None
    problem = otel.why_not()
    if problem is not None:
        log(logging.WARNING, "no traces are sent", reason=problem)
        return None
    return RequestTraces(service)


def _context_of(parent: Parent) -> Context:
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    flags = TraceFlags(int(parent.sampled))
    remote = SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(remote))


class _FirstLine(logging.Filter):
    """Tells the exporter's first line as the service tells things, and none of those that follow."""

    _told = False

    def filter(self, record: logging.LogRecord) -> bool:
        if not self._told:
            self._told = True
            log(logging.WARNING, "traces cannot be sent", reason=record.getMessage())
        return False
