"""The HTTP routes of the sandbox service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Body, Depends, FastAPI, Request
from prometheus_client import CollectorRegistry
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrl import __version__
from agentrl.services.common.client_disconnect import answer_disconnected, cancel_on_disconnect
from agentrl.services.common.standard_routes import Problem, add_standard_routes, problem_responses
from agentrl.services.sandbox.admission import Busy
from agentrl.services.sandbox.languages import language_version
from agentrl.services.sandbox.metrics import SandboxMetrics
from agentrl.services.sandbox.options import SandboxOptions
from agentrl.services.sandbox.protocol import (
    Judge,
    JudgeAnswer,
    OpenSession,
    RunCode,
    RunCodeAnswer,
    RunInSession,
    RunJupyter,
    RunJupyterAnswer,
    SessionAnswer,
)
from agentrl.services.sandbox.run_limits import MIB
from agentrl.services.sandbox.service import SandboxService, open_service

_REFUSALS = problem_responses(400, 401, 403, 413, 422, 429, 503)
_IN_SESSION: dict[int | str, dict[str, Any]] = {
    **_REFUSALS,
    404: {"model": Problem, "description": "No such session."},
}

_DEFAULTS = Body(default_factory=lambda: OpenSession.model_validate({}))


def create_app(options: SandboxOptions, token: str | None = None) -> FastAPI:
    """The application.

    Args:
        options: sizes and limits.
        token: bearer token that requests need; None: none.
    """
    registry = CollectorRegistry()
    metrics = SandboxMetrics(registry)
    services: list[SandboxService] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with open_service(options, metrics) as service:
            services.append(service)
            _show(service, metrics)
            yield
            services.clear()

    def service() -> SandboxService:
        return services[0]

    def health() -> dict[str, Any]:
        return _health(services[0]) if services else {}

    def not_ready() -> str | None:
        if not services:
            return "starting or stopping"
        return "the queue is full" if services[0].admission.is_full else None

    app = FastAPI(
        title="agentrl sandbox",
        version=__version__,
        description="Runs code isolated from the machine and from other runs. `/run_code` is SandboxFusion's protocol.",
        lifespan=lifespan,
    )
    add_standard_routes(
        *(app,),
        service="sandbox",
        token=token,
        registry=registry,
        health=health,
        not_ready=not_ready,
        max_body_bytes=(options.files_mb * 4 // 3 + 16) * MIB,
    )
    app.add_middleware(JsonBodies)
    app.add_exception_handler(Busy, _busy(metrics))
    app.add_exception_handler(ClientDisconnect, answer_disconnected)
    _add_routes(app, Depends(service))
    return app


class JsonBodies:
    """Middleware that treats every body as JSON: `curl -d` labels it a form, and no route takes a form."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http" and scope["method"] == "POST":
            MutableHeaders(scope=scope)["content-type"] = "application/json"
        await self._app(scope, receive, send)


def _add_routes(app: FastAPI, current: Any) -> None:
    @app.get("/v1/ping", summary="SandboxFusion's probe.", responses=problem_responses(401, 403))
    async def ping() -> str:
        return "pong"

    @app.get(
        "/languages", summary="Languages of `/run_code` that are installed.", responses=problem_responses(401, 403)
    )
    async def languages(service: SandboxService = current) -> dict[str, str]:
        """The version of each, by name."""
        layout, versions = service.isolation.layout, service.versions
        new = [name for name in service.languages if not versions.get(name)]
        told = await asyncio.gather(
            *(asyncio.to_thread(language_version, service.languages[name], layout) for name in new)
        )
        versions.update(zip(new, told, strict=True))
        return {name: versions[name] for name in sorted(versions)}

    @app.post("/run_code", summary="Run code once.", response_model=RunCodeAnswer, responses=_REFUSALS)
    async def run_code(body: RunCode, request: Request, service: SandboxService = current) -> Response:
        """Anything that the code does is an answer with status 200; only a request that cannot be served is an error.

        If the client closes the connection, the run ends.
        """
        answer = await cancel_on_disconnect(request, service.run_code(body, client_of(request)))
        return Response(answer.model_dump_json(), media_type="application/json")

    @app.post("/sessions", summary="Start a Python session.", responses=_REFUSALS)
    async def open_session(
        request: Request, body: OpenSession = _DEFAULTS, service: SandboxService = current
    ) -> SessionAnswer:
        """Its variables and files last until it is deleted, idle for too long, or too old."""
        return await cancel_on_disconnect(request, service.open_session(body, client_of(request)))

    @app.post("/sessions/{session_id}/run", summary="Run code in a session.", responses=_IN_SESSION)
    async def run_in_session(
        session_id: str, body: RunInSession, request: Request, service: SandboxService = current
    ) -> RunCodeAnswer:
        """Runs of one session take turns. Code that runs too long is interrupted and keeps its variables."""
        return await service.run_in_session(session_id, body, client_of(request))

    @app.delete("/sessions/{session_id}", summary="End a session.", responses=_IN_SESSION)
    async def end_session(session_id: str, service: SandboxService = current) -> dict[str, str]:
        """Ends a run in progress too."""
        await service.sessions.end(session_id)
        return {"session_id": session_id}

    @app.post("/run_jupyter", summary="Run cells in one interpreter.", responses=_REFUSALS)
    async def run_jupyter(body: RunJupyter, request: Request, service: SandboxService = current) -> RunJupyterAnswer:
        """A cell that raises says so in its `error`; the next ones run."""
        return await cancel_on_disconnect(request, service.run_jupyter(body, client_of(request)))

    @app.post("/judge", summary="Run a program against tests.", responses=_REFUSALS)
    async def judge(body: Judge, request: Request, service: SandboxService = current) -> JudgeAnswer:
        """Tests run at the same time; outputs are compared without spaces at the ends of lines."""
        return await cancel_on_disconnect(request, service.judge(body, client_of(request)))


def client_of(request: Request) -> str:
    """Whose request this is, for taking turns: the header `X-Client-ID` or `X-Client`, else the address."""
    given = request.headers.get("x-client-id") or request.headers.get("x-client")
    return given[:100] if given else (request.client.host if request.client else "")


def _busy(metrics: SandboxMetrics) -> Any:
    async def answer(_: Request, error: Exception) -> Response:
        assert isinstance(error, Busy)
        metrics.refused()
        return JSONResponse({"detail": str(error)}, 429, {"Retry-After": str(error.retry_after_s)})

    return answer


def _health(service: SandboxService) -> dict[str, Any]:
    return {
        "isolation": service.isolation.level,
        "isolation_details": list(service.isolation.details),
        "interpreters": "forked" if service.isolation.forks else "fresh",
        "languages": sorted(service.languages),
        "running": service.admission.running,
        "waiting": service.admission.waiting,
        "warm": service.pool.ready,
        "sessions": len(service.sessions),
    }


def _show(service: SandboxService, metrics: SandboxMetrics) -> None:
    metrics.gauge("running", "Runs now", lambda: service.admission.running)
    metrics.gauge("waiting", "Requests in the queue", lambda: service.admission.waiting)
    metrics.gauge("warm", "Sandboxes that are ready", lambda: service.pool.ready)
    metrics.gauge("sessions", "Open sessions", lambda: len(service.sessions))
    metrics.gauge("open", "Sandboxes that exist", lambda: len(service.pool.open))
