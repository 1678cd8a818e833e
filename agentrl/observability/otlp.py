"""Sends timelines to an OpenTelemetry collector (OTLP over HTTP), in a thread of its own that nothing ever waits for.

The address is `trainer.otlp_endpoint`, or the standard's variables say it; they also say everything else: headers,
time limit, compression, certificates, sampler, attributes of the resource (`OTEL_*`).
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from agentrl import otel
from agentrl.errors import ConfigError
from agentrl.timeline import Span, Timeline, TraceContext

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

logger = logging.getLogger(__name__)

MOST_WAITING = 16
"""Steps that wait to be sent; those of a collector that is slower than the run are dropped."""
BATCH = 512
CLOSE_TIMEOUT_S = 5.0

Timelines = Sequence[tuple[str, Timeline]]
"""By the names of their processes."""


def open_sender(endpoint: str | None, attributes: Mapping[str, str]) -> OtlpSender | None:
    """A sender, if anybody asks for one.

    Args:
        endpoint: `trainer.otlp_endpoint`.
        attributes: of the run.

    Raises:
        ConfigError: `endpoint` is given, but the package is not installed.
    """
    if otel.is_disabled() or (endpoint is None and not otel.names_collector()):
        return None
    if endpoint is not None:
        if not otel.is_installed():
            raise ConfigError([f"trainer.otlp_endpoint: {otel.NEEDS}"])
        return OtlpSender(endpoint, attributes)
    problem = otel.why_not()
    if problem is not None:
        logger.warning("no traces are sent to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names: %s", problem)
        return None
    return OtlpSender(None, attributes)


class OtlpSender:
    """Sends in the background. A collector that cannot be reached costs spans and one line of the log, nothing else.

    Args:
        endpoint: as in `open_sender`.
        attributes: of the run.
    """

    def __init__(self, endpoint: str | None, attributes: Mapping[str, str]) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider

        self._said = _LastSaid()
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(self._said)
        self._exporter = OTLPSpanExporter(None if endpoint is None else otel.with_path(endpoint))
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler
        self._attributes = dict(attributes)
        self._resources: dict[str, Resource] = {}
        self._waiting: queue.Queue[Timelines | None] = queue.Queue(MOST_WAITING)
        self._failing = self._closed = False
        self._thread = threading.Thread(target=self._send_all, name="agentrl-traces", daemon=True)
        self._thread.start()

    def wants(self, trace: TraceContext, name: str) -> bool:
        """Whether the sampler (`OTEL_TRACES_SAMPLER`) takes a trace that begins with a span of this name."""
        from opentelemetry.sdk.trace.sampling import Decision

        decision = self._sampler.should_sample(None, int(trace.trace_id, 16), name).decision
        return decision is Decision.RECORD_AND_SAMPLE

    def send(self, timelines: Timelines) -> None:
        """Send them soon; returns at once."""
        try:
            self._waiting.put_nowait(timelines)
        except queue.Full:
            self._tell_failure(f"{MOST_WAITING} steps wait to be sent")

    def close(self) -> None:
        """Send what waits, for a few seconds at most; what is left then is dropped."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=CLOSE_TIMEOUT_S)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self._closed = True  # and what waits to be tried again is given up
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        self._thread.join(CLOSE_TIMEOUT_S)
        if not self._thread.is_alive():  # else its lines are still kept away
            logging.getLogger(type(self._exporter).__module__).removeFilter(self._said)

    def _send_all(self) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        while (timelines := self._waiting.get()) is not None and not self._closed:
            spans = [*self._spans(timelines)]
            for first in range(0, len(spans), BATCH):
                if self._exporter.export(spans[first : first + BATCH]) is not SpanExportResult.SUCCESS:
                    self._tell_failure(self._said.text)
                    break
            else:
                self._failing = False

    def _tell_failure(self, reason: str) -> None:
        if not self._failing:
            logger.warning("traces cannot be sent, and the run goes on without them: %s", reason)
        self._failing = True

    def _spans(self, timelines: Timelines) -> Iterator[ReadableSpan]:
        for process, timeline in timelines:
            resource = self._resource_of(process)
            if timeline.trace is not None:
                for span in timeline.spans:
                    yield _otlp_span(span, timeline.began, timeline.trace.trace_id, resource)

    def _resource_of(self, process: str) -> Resource:
        """A process: its service's name is `OTEL_SERVICE_NAME`, else agentrl."""
        from opentelemetry.sdk.resources import Resource

        if process not in self._resources:
            found = Resource.create({**self._attributes, "agentrl.process": process})
            if str(found.attributes["service.name"]).startswith("unknown_service"):
                found = found.merge(Resource({"service.name": "agentrl"}))
            self._resources[process] = found
        return self._resources[process]


def _otlp_span(span: Span, began: float, trace_id: str, resource: Resource) -> ReadableSpan:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

    def context(span_id: str) -> SpanContext:
        return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(1))

    start = int((began + span.start) * 1e9)
    return ReadableSpan(
        span.name,
        context(span.span_id),
        context(span.parent_id) if span.parent_id else None,
        resource,
        {"agentrl.detail": span.detail} if span.detail else {},
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=start,
        end_time=start + int(span.seconds * 1e9),
        instrumentation_scope=InstrumentationScope("agentrl"),
    )


class _LastSaid(logging.Filter):
    """Keeps the exporter's last line, which would come for every batch, from the log."""

    text = "no reason is known"

    def filter(self, record: logging.LogRecord) -> bool:
        self.text = record.getMessage()
        return False
