"""The viewer's server: the page, its files, and what it asks for. Every answer is about files; none changes a run."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as HTTPError
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from agentrl.errors import UserInputError
from agentrl.observability.viewer import curves, search
from agentrl.observability.viewer.conversation import conversation_of
from agentrl.observability.viewer.guard import Access, Guard, json_answer
from agentrl.observability.viewer.index import MOST_STEPS, DumpIndex
from agentrl.observability.viewer.runs import DumpSet, RunSet, ViewedRun, config_differences

STATIC = Path(__file__).parent / "static"
_MOST_RUNS = 20


class Dumps(BaseModel):
    """Which dumps of a run."""

    model_config = ConfigDict(extra="forbid")

    kind: DumpSet = Field(default="train", alias="set")


class TrajectoryQuery(search.Page):
    """Trajectories of a run."""

    kind: DumpSet = Field(default="train", alias="set")


class GroupQuery(Dumps):
    """Groups of a run."""

    step: int | None = Field(default=None, ge=0, lt=MOST_STEPS)
    uid: str | None = None
    offset: int = Field(default=0, ge=0, le=2**53)
    limit: int = Field(default=100, ge=0, le=1000)


class MetricsQuery(BaseModel):
    """Curves of a run."""

    model_config = ConfigDict(extra="forbid")

    since: int | None = None
    names: str | None = None
    """Separated by commas; all if it is not given."""


def create_app(runs: RunSet, access: Access) -> FastAPI:
    """The application.

    Args:
        runs: what it shows; closed when the application ends.
        access: who may see it.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        runs.watcher.start()
        yield
        runs.close()

    app = FastAPI(title="agentrl view", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_middleware(Guard, access=access)
    app.add_exception_handler(RequestValidationError, _wrong_parameter)
    app.add_exception_handler(HTTPError, _refused)
    app.add_exception_handler(UserInputError, _unusable)
    app.add_exception_handler(sqlite3.Error, _no_index)
    _add_runs(app, runs)
    _add_trajectories(app, runs)

    @app.get("/")
    async def page() -> Response:
        return FileResponse(STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=STATIC, check_dir=False))
    return app


def _add_runs(app: FastAPI, runs: RunSet) -> None:
    """What is asked about whole runs."""

    @app.get("/api/runs")
    def list_runs() -> Response:
        return json_answer([run.overview() for run in runs.all()])

    @app.get("/api/runs/{run}/metrics")
    def metrics(run: str, query: Annotated[MetricsQuery, Query()]) -> Response:
        rows, problem = _run(runs, run).rows()
        names = None if query.names is None else [name for name in query.names.split(",") if name]
        return json_answer({**curves.curves_of(rows, query.since, names), "problem": problem})

    @app.get("/api/runs/{run}/events")
    def events(run: str) -> Response:
        return json_answer(_run(runs, run).events())

    @app.get("/api/runs/{run}/timing")
    def timing(run: str) -> Response:
        return json_answer(curves.timing_of(_run(runs, run).rows()[0]))

    @app.get("/api/runs/{run}/config")
    def config(run: str) -> Response:
        return json_answer(_run(runs, run).config())

    @app.get("/api/config_difference")
    def config_difference(run: Annotated[list[str], Query(min_length=2, max_length=_MOST_RUNS)]) -> Response:
        return json_answer(config_differences([_run(runs, name).config() for name in run]))


def _add_trajectories(app: FastAPI, runs: RunSet) -> None:
    """What is asked about conversations."""

    @app.get("/api/runs/{run}/trajectories")
    def trajectories(run: str, query: Annotated[TrajectoryQuery, Query()]) -> Response:
        viewed = _run(runs, run)
        index = viewed.index(query.kind)
        total, rows = (0, []) if index is None else search.page_of(index, query)
        state = _state(viewed, index, query.kind)
        return json_answer({"total": total, **state, "rows": _numbered(rows, query.kind)})

    @app.get("/api/runs/{run}/facets")
    def facets(run: str, query: Annotated[Dumps, Query()]) -> Response:
        viewed = _run(runs, run)
        index = viewed.index(query.kind)
        found = search.NO_FACETS if index is None else search.facets_of(index)
        return json_answer({**found, **_state(viewed, index, query.kind)})

    @app.get("/api/runs/{run}/groups")
    def groups(run: str, query: Annotated[GroupQuery, Query()]) -> Response:
        index = _run(runs, run).index(query.kind)
        wanted = search.Filter(step=query.step, uid=query.uid)
        total, found = (0, []) if index is None else search.groups_of(index, wanted, query.offset, query.limit)
        shown = [{**group, "rows": _numbered(group["rows"], query.kind)} for group in found]
        return json_answer({"total": total, "groups": shown})

    @app.get("/api/runs/{run}/prompts/{prompt_key}")
    def prompts(run: str, prompt_key: str, query: Annotated[Dumps, Query()]) -> Response:
        index = _run(runs, run).index(query.kind)
        rows = [] if index is None else search.rows_of_prompt(index, prompt_key)
        return json_answer(_numbered(rows, query.kind))

    @app.get("/api/runs/{run}/trajectories/{number}")
    def conversation(run: str, number: int) -> Response:
        viewed, kind = _run(runs, run), _kind_of(number)
        index, own = viewed.index(kind), number // 2
        row = None if index is None or not 0 <= number <= 2**53 else search.row_of(index, own)
        record = None if index is None or row is None else index.read(own)
        if index is None or row is None or record is None:
            raise HTTPException(404, f"got trajectory {number}, wanted one that the dumps of {run} hold")
        before, after = search.neighbours_of(index, own)
        around = {"previous": _public(before, kind), "next": _public(after, kind)}
        shown = conversation_of(record, viewed.folder, viewed.name)
        return json_answer({"row": _numbered([row], kind)[0], **shown, "neighbours": around})


def _run(runs: RunSet, name: str) -> ViewedRun:
    found = runs.named(name)
    if found is None:
        known = ", ".join(run.address for run in runs.all()[:_MOST_RUNS])
        raise HTTPException(404, f"got the run {name!r}, wanted one of {known}")
    return found


def _state(run: ViewedRun, index: DumpIndex | None, kind: DumpSet) -> dict[str, Any]:
    """How far the index is."""
    if index is None:
        return {"indexed": 0, "complete": True, "damaged": 0, "problem": run.why_none(kind)}
    indexed, problem = search.count_of(index), index.problem
    if problem is None and not indexed and index.complete:
        problem = run.why_none(kind) if not index.damaged else f"{index.folder} holds no trajectory, only damaged lines"
    return {"indexed": indexed, "complete": index.complete, "damaged": index.damaged, "problem": problem}


def _numbered(rows: list[search.Row], kind: DumpSet) -> list[search.Row]:
    """Rows with numbers that are unique in the run: even ones of training, odd ones of validation."""
    return [{**row, "id": _public(row["id"], kind), "set": kind} for row in rows]


def _public(number: int | None, kind: DumpSet) -> int | None:
    return None if number is None else 2 * number + (kind == "validation")


def _kind_of(number: int) -> DumpSet:
    return "validation" if number % 2 else "train"


async def _wrong_parameter(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name, got = ".".join(str(part) for part in first["loc"][1:]), repr(first.get("input"))[:80]
    wanted = first["msg"].lower().removeprefix("input should be ").partition(",")[0]
    unknown = first["type"] == "extra_forbidden"
    text = (
        f"got the parameter {name}, which this address does not have"
        if unknown
        else f"{name}: got {got}, wanted {wanted}"
    )
    return json_answer({"error": text}, 400)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPError)
    return json_answer({"error": str(error.detail)}, error.status_code)


async def _unusable(_: Request, error: Exception) -> Response:
    return json_answer({"error": str(error)}, 400)


async def _no_index(_: Request, error: Exception) -> Response:
    return json_answer({"error": f"the index of the dumps cannot be read ({error}): ask again in a moment"}, 503)
