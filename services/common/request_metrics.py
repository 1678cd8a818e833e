"""Middleware that counts, times and logs every request, and gives it an id."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl.services.common.logs import log
from agentrl.services.common.request_traces import RequestTraces, parent_of

_REQUEST_ID = re.compile(rb"[\w.-]{1,64}")
_QUIET_ROUTES = ("/health", "/ready", "/metrics")
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class RequestMetrics:
    """What `/metrics` says about requests, under `agentrl_{service}_`."""

    def __init__(self, service: str, registry: CollectorRegistry) -> None:
        prefix = f"agentrl_{service}"
        labels = ("method", "route", "status")
        self.total = Counter(f"{prefix}_requests", "Requests answered", labels, registry=registry)
        self.seconds = Histogram(
            f"{prefix}_request_seconds", "Time to answer", ("route",), buckets=_BUCKETS, registry=registry
        )
        self.in_flight = Gauge(f"{prefix}_requests_in_flight", "Requests not answered yet", registry=registry)


def _request_id(scope: Scope) -> str:
    """The one that the client gave, if it is one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return os.urandom(16).hex()


class RequestMetricsMiddleware:
    """Counts, times and logs requests; `X-Request-ID` is taken over or made, and returned.

    Args:
        app: what answers them.
        metrics: counts them.
        traces: sends their spans; None: nobody asks for them.
    """

    def __init__(self, app: ASGIApp, metrics: RequestMetrics, traces: RequestTraces | None) -> None:
        self._app, self._metrics, self._traces = app, metrics, traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        status, has_begun, started = 500, False, time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        with self._metrics.in_flight.track_inprogress():
            try:
                await self._app(scope, receive, send_with_id)
            except asyncio.CancelledError:  # the server ends
                if has_begun:
                    raise
                detail = "the service is stopping and did not wait any longer for this request"
                await JSONResponse({"detail": detail}, 503)(scope, receive, send_with_id)
            finally:
                self._record(scope, status, time.perf_counter() - started, request_id)

    def _record(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        # The route's pattern, never the path: a scanner must not make a time series per path it tries.
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if route != "unmatched" else "any"
        self._metrics.total.labels(method, route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        is_quiet = route in _QUIET_ROUTES and status < 400
        level, parent = logging.DEBUG if is_quiet else logging.INFO, parent_of(scope)
        trace: dict[str, Any] = {} if parent is None else {"trace_id": parent.trace_id}
        log(
            *(level, "request"),
            method=scope["method"],
            path=scope["path"],
            status=status,
            ms=round(seconds * 1000, 2),
            request_id=request_id,
            **trace,
        )
        if self._traces is not None and not is_quiet:
            said = {"http.request.method": scope["method"], "http.route": route, "http.response.status_code": status}
            self._traces.send(f"{method} {route}", parent, time.time() - seconds, seconds, said)
