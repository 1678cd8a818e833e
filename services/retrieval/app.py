"""The application: `POST /retrieve`, `POST /reload` and the routes that every service has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from prometheus_client import CollectorRegistry, Gauge
from starlette.responses import Response

from agentrl import __version__
from agentrl.errors import UserInputError
from agentrl.services.common.standard_routes import BareRoute, add_standard_routes, problem_responses, read_body
from agentrl.services.retrieval.options import RetrievalOptions
from agentrl.services.retrieval.protocol import Retrieved, render_results, request_model, request_schema
from agentrl.services.retrieval.query_batching import QueryBatcher, SearchMetrics
from agentrl.services.retrieval.reloadable_index import ReloadableIndex


def create_app(served_index: ReloadableIndex, options: RetrievalOptions, token: str | None = None) -> FastAPI:
    """Build the application.

    Args:
        served_index: the index.
        options: limits and sizes.
        token: bearer token that requests need; None: none, and no `/reload`.
    """
    registry = CollectorRegistry()
    batcher = QueryBatcher(served_index, options, SearchMetrics(registry))
    _add_gauges(served_index, registry)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        served_index.attach(asyncio.get_running_loop())
        yield
        batcher.close()

    app = FastAPI(
        title="agentrl retrieval",
        version=__version__,
        description="Search over a corpus, in Search-R1's protocol.",
        lifespan=lifespan,
    )
    _add_retrieve(app, batcher, options)
    _add_reload(app, served_index, token)
    add_standard_routes(
        app,
        service="retrieval",
        token=token,
        registry=registry,
        health=lambda: {"index": served_index.current.about()},
        not_ready=lambda: None,
        max_body_bytes=options.max_body_bytes,
    )
    return app


def _add_gauges(served_index: ReloadableIndex, registry: CollectorRegistry) -> None:
    documents = Gauge("agentrl_retrieval_index_documents", "Documents of the index", registry=registry)
    documents.set_function(lambda: len(served_index.current.index.documents))
    generation = Gauge("agentrl_retrieval_index_generation", "Times the index was loaded", registry=registry)
    generation.set_function(lambda: served_index.current.generation)


def _add_retrieve(app: FastAPI, batcher: QueryBatcher, options: RetrievalOptions) -> None:
    model = request_model(options)
    body = {"required": True, "content": {"application/json": {"schema": request_schema(options)}}}

    async def retrieve(request: Request) -> Response:
        asked = await read_body(request, model)
        queries, notes = asked.texts(options.max_query_chars)
        found = await batcher.find(queries, asked.topk or options.default_topk)
        return Response(render_results(found, bool(asked.return_scores), notes), media_type="application/json")

    app.router.add_api_route(
        "/retrieve",
        retrieve,
        methods=["POST"],
        summary="The best documents of each query.",
        response_model=Retrieved,
        responses=problem_responses(400, 401, 403, 413, 422, 429, 503, 504),
        openapi_extra={"requestBody": body},
        route_class_override=BareRoute,
    )


def _add_reload(app: FastAPI, served_index: ReloadableIndex, token: str | None) -> None:
    @app.post(
        "/reload",
        summary="Open the index folder again without interruption; needs a server with a token.",
        responses=problem_responses(401, 403, 409),
    )
    async def reload() -> dict[str, Any]:
        if token is None:
            raise HTTPException(403, "reloading over HTTP needs a server with --token; or send the process SIGHUP")
        try:
            loaded = await served_index.reload()
        except UserInputError as error:
            raise HTTPException(409, f"the old index stays in use: {error}") from error
        return loaded.about()
