"""The routes and answers that every service has: `/health`, `/ready`, `/metrics`, and errors as `{"detail": text}`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel, ValidationError
from starlette.responses import JSONResponse, Response
from starlette.routing import request_response

from agentrl import __version__
from agentrl.services.common.access_control import MAX_BODY_BYTES, OPEN_PATHS, AccessControl, bearer_auth
from agentrl.services.common.request_metrics import RequestMetrics, RequestMetricsMiddleware
from agentrl.services.common.request_traces import traces_of

_SHOWN_CHARS = 60
_Model = TypeVar("_Model", bound=BaseModel)


class BareRoute(APIRoute):
    """A route whose function takes the `Request` and makes the `Response`, in the OpenAPI document like any other.

    FastAPI's own handler would collect dependencies and parameters, of which there are none, before every call.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = request_response(endpoint)


class Problem(BaseModel):
    """Every answer with a status of 400 or more."""

    detail: str


PROBLEMS: dict[int, str] = {
    400: "The body is not JSON.",
    401: "No token, or a wrong one.",
    403: "A web page of another origin.",
    413: "The body is over the limit.",
    422: "A field is missing, of the wrong type or over its limit.",
    409: "Not in this state.",
    429: "Too many requests wait; Retry-After says when to try again.",
    503: "Not now: starting, stopping or out of order.",
    504: "No answer in time.",
}


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer with these statuses."""
    return {status: {"model": Problem, "description": PROBLEMS[status]} for status in statuses}


def add_standard_routes(
    app: FastAPI,
    *,
    service: str,
    token: str | None,
    registry: CollectorRegistry,
    health: Callable[[], Mapping[str, Any]],
    not_ready: Callable[[], str | None],
    max_body_bytes: int = MAX_BODY_BYTES,
    open_paths: Collection[str] = OPEN_PATHS,
) -> None:
    """Give an application probes, metrics, access control, request logs, traces and readable errors.

    Args:
        app: the application.
        service: `retrieval` or `sandbox`; names metrics `agentrl_{service}_…`.
        token: bearer token that requests need; None: none.
        registry: what `/metrics` shows; the service adds its own metrics to it.
        health: what `/health` says besides `status`, `service` and `version`; must not wait.
        not_ready: why the service cannot take requests now; None if it can.
        max_body_bytes: a larger body is answered 413.
        open_paths: paths that need no token.
    """

    @app.get("/health", summary="Is the process alive, and what does it run?")
    async def get_health() -> dict[str, Any]:
        return {"status": "ok", "service": service, "version": __version__, **health()}

    @app.get("/ready", summary="Does it take requests now?", responses=problem_responses(503))
    async def get_ready() -> dict[str, str]:
        reason = not_ready()
        if reason is not None:
            raise HTTPException(503, reason)
        return {"status": "ready"}

    @app.get(
        "/metrics",
        summary="Metrics in Prometheus' text format.",
        response_class=Response,
        responses={200: {"content": {CONTENT_TYPE_LATEST.split(";")[0]: {}}}, **problem_responses(401, 403)},
    )
    async def get_metrics() -> Response:
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    if token is not None:
        _declare_token(app, open_paths)
    app.add_exception_handler(RequestValidationError, _unusable)
    app.add_exception_handler(Exception, _broken)
    app.add_middleware(AccessControl, check=bearer_auth(token), open_paths=open_paths, max_body_bytes=max_body_bytes)
    metrics = RequestMetrics(service, registry)
    app.add_middleware(RequestMetricsMiddleware, metrics=metrics, traces=traces_of(service))


def _declare_token(app: FastAPI, open_paths: Collection[str]) -> None:
    """Say in the OpenAPI document that requests need a token."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        document = make()
        document.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
        for path in open_paths:
            for operation in document["paths"][path].values():
                operation["security"] = []
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it


async def read_body(request: Request, model: type[_Model]) -> _Model:
    """The body of a request; cheaper than a body parameter, and the model may hold limits of this server.

    Raises:
        RequestValidationError: it is not JSON, or does not fit the model.
    """
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False)) from None


async def _unusable(request: Request, error: Exception) -> Response:
    """400 for a body that is not JSON, 422 for fields, in one line each."""
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if found and found[0]["type"] == "json_invalid":
        reason = found[0].get("ctx", {}).get("error", "")
        return JSONResponse({"detail": f"the body is not JSON: {reason}"}, 400)
    return JSONResponse({"detail": "; ".join(map(_one_line, found[:5]))}, 422)


def _one_line(problem: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in problem["loc"] if part != "body") or "the body"
    message = problem["msg"].removeprefix("Value error, ")
    given = ascii(problem.get("input"))
    shown = given if len(given) <= _SHOWN_CHARS else f"{given[:_SHOWN_CHARS]}…"
    return f"{where}: {message} (got {shown})" if problem["type"] != "missing" else f"{where}: {message}"


async def _broken(request: Request, error: Exception) -> Response:
    detail = f"a bug in the service ({type(error).__name__}); its log has the traceback"
    # The server closes the connection after a traceback: a client must not use it again.
    return JSONResponse({"detail": detail}, 500, {"Connection": "close"})
