"""The search client against a real HTTP server that misbehaves on demand."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentrl.clients import ServiceClient, WorkerScope
from agentrl.errors import ConfigError, ToolServiceError
from agentrl.plugins import load_tools
from agentrl.tools.search import Search

Answer = Callable[[int, dict[str, Any]], Any]
DOCUMENT = {"id": "1", "contents": '"Title"\nBody text'}


class Service:
    """Answers the k-th request as told."""

    def __init__(self) -> None:
        self.answer: Answer = lambda count, body: web.json_response({"result": [[] for _ in body["queries"]]})
        self.bodies: list[dict[str, Any]] = []
        self.url = ""
        self.peers: set[Any] = set()

    async def handle(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        self.peers.add(request.transport.get_extra_info("peername"))
        self.bodies.append(await request.json())
        answer = self.answer(len(self.bodies), self.bodies[-1])
        return await answer if inspect.isawaitable(answer) else answer


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    app = web.Application()
    app.router.add_post("/retrieve", service.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
    yield service
    await runner.cleanup()


async def search(service: Service, *queries: str, **config: Any) -> Any:
    tool = Search({"retrieval_service_url": service.url, "backoff_s": 0.001, **config})
    try:
        return await tool.execute({"query_list": list(queries)})
    finally:
        await tool.release()


async def test_a_batch_of_queries_is_one_request(service: Service) -> None:
    hits = {
        "q1": [{"document": DOCUMENT, "score": 0.5}],
        "q2": [DOCUMENT, {"document": {"contents": "T2\nB2"}}],
        "q3": [],
    }
    service.answer = lambda count, body: web.json_response({"result": [hits[query] for query in body["queries"]]})
    response = await search(service, "q1", "q2", "q3", topk=2)
    assert service.bodies == [{"queries": ["q1", "q2", "q3"], "topk": 2, "return_scores": True}]
    assert response.text == (
        'Results for: q1\nDoc 1 (Title: "Title") Body text\n\n'
        'Results for: q2\nDoc 1 (Title: "Title") Body text\nDoc 2 (Title: T2) B2\n\n'
        "Results for: q3\nNo documents found."
    )
    assert response.metrics == {"documents": 3.0}


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_service_is_asked_again(service: Service, status: int) -> None:
    service.answer = lambda count, body: (
        web.Response(status=status, headers={"retry-after": "0"})
        if count < 3
        else web.json_response({"result": [[DOCUMENT]]})
    )
    assert "Body text" in (await search(service, "q")).text
    assert len(service.bodies) == 3


@pytest.mark.parametrize(
    ("answer", "attempts", "message"),
    [
        (lambda *_: web.Response(status=503, text="down"), 3, "failed after 3 attempts: HTTP 503: down"),
        (lambda *_: web.Response(status=422, text="bad field"), 1, "failed after 1 attempt: HTTP 422: bad field"),
        (lambda *_: web.Response(text="<html>"), 1, "the answer is not JSON: <html>"),
        (lambda *_: web.json_response({"result": []}), 1, "without one result per query"),
        (lambda *_: web.json_response([1]), 1, "without one result per query"),
    ],
)
async def test_a_failing_service_is_never_an_answer(
    service: Service, answer: Answer, attempts: int, message: str
) -> None:
    service.answer = answer
    with pytest.raises(ToolServiceError) as caught:
        await search(service, "q", retries=2)
    assert message in str(caught.value)
    assert len(service.bodies) == attempts


async def test_no_service_at_all() -> None:
    service = Service()
    service.url = "http://127.0.0.1:9"
    with pytest.raises(ToolServiceError, match=r"failed after 2 attempts: ConnectError"):
        await search(service, "q", retries=1)


@pytest.mark.parametrize(
    "config", [{}, {"retrieval_service_url": "localhost:1"}, {"retrieval_service_url": "http://x", "retrys": 1}]
)
def test_a_configuration_that_cannot_work(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"config\.(retrieval_service_url|retrys)"):
        Search(config)


def test_the_path_is_added_once() -> None:
    for url in ("http://x:1", "http://x:1/", "http://x:1/retrieve"):
        assert Search({"retrieval_service_url": url})._service.url == "http://x:1"
    assert json.dumps(Search.default_schema())


HITS = [
    {"document": {"id": "a", "contents": '"First"\nBody one'}, "score": 1.5},
    {"document": {"id": "b", "title": "Second", "text": "Body two"}, "score": 0.25},
    {"document": {"contents": "no body"}},
]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {},
            'Results for: q\nDoc 1 (Title: "First") Body one\nDoc 2 (Title: Second) Body two\nDoc 3 (Title: no body) ',
        ),
        ({"document_template": "[{id}|{score}] {contents}", "query_template": "{documents}", "max_documents": 2,
          "max_document_chars": 10}, '[a|1.5] "First"\nBo\n[b|0.25] Second\nBod'),
        ({"document_template": "{number}. {title}", "query_template": "<information>\n{documents}\n</information>",
          "order": "best_last"}, '<information>\n3. no body\n2. Second\n1. "First"\n</information>'),
        ({"max_documents": 0, "empty_text": "-", "query_template": "{query}: {documents}"}, "q: -"),
    ],
)  # fmt: skip
async def test_documents_are_shown_as_configured(service: Service, config: dict[str, Any], text: str) -> None:
    service.answer = lambda count, body: web.json_response({"result": [HITS]})
    assert (await search(service, "q", **config)).text == text


@pytest.mark.parametrize("config", [{"return_scores": False, "topk": None}, {"topk": 0}])
async def test_bare_documents(service: Service, config: dict[str, Any]) -> None:
    service.answer = lambda count, body: web.json_response({"result": [[DOCUMENT, "plain"], []]})
    response = await search(service, "q1", "q2", **config, document_template="{title}|{score}|{body}")
    assert response.text == 'Results for: q1\n"Title"||Body text\nplain||\n\nResults for: q2\nNo documents found.'
    assert service.bodies[0]["topk"] == config["topk"]
    assert service.bodies[0]["return_scores"] is config.get("return_scores", True)


@pytest.mark.parametrize(
    ("arguments", "queries"),
    [
        ({"query": "one"}, ["one"]),
        ({"query_list": "one"}, ["one"]),
        ({"query_list": ["a", " ", "b"]}, ["a", "b"]),
        ({"query_list": None, "query": "one"}, ["one"]),
    ],
)
async def test_a_single_query(service: Service, arguments: dict[str, Any], queries: list[str]) -> None:
    tool = Search({"retrieval_service_url": service.url})
    assert not (await tool.execute(arguments)).is_error
    assert service.bodies[0]["queries"] == queries
    await tool.release()


@pytest.mark.parametrize("arguments", [{}, {"query_list": []}, {"query": " "}])
async def test_no_query_is_the_models_mistake(service: Service, arguments: dict[str, Any]) -> None:
    response = await Search({"retrieval_service_url": service.url}).execute(arguments)
    assert response.is_error
    assert "query_list" in response.text
    assert service.bodies == []


async def test_a_query_over_the_services_limit_is_the_models_mistake(service: Service) -> None:
    tool = Search({"retrieval_service_url": service.url, "max_query_chars": 20})
    response = await tool.execute({"query_list": ["short", "q" * 21]})
    assert response.is_error
    assert response.text == "search was not run: a query has 21 characters; at most 20 are allowed"
    assert service.bodies == []
    assert not (await tool.execute({"query": "q" * 20})).is_error
    await tool.release()


async def test_a_service_that_hangs_or_hangs_up(service: Service) -> None:
    async def hang(count: int) -> web.Response:
        await asyncio.sleep(2)
        raise AssertionError

    def answer(count: int, body: dict[str, Any]) -> Any:
        return hang(count) if count == 1 else web.json_response({"result": [[DOCUMENT]]})

    service.answer = answer
    assert "Body text" in (await search(service, "q", request_timeout_s=0.5)).text
    service.bodies.clear()
    with pytest.raises(ToolServiceError, match=r"after 1 attempt: no answer within 0\.5 s"):
        await search(service, "q", request_timeout_s=0.5, retries=0)


@pytest.mark.parametrize(
    ("header", "waits"), [("1.5", True), (lambda: format_datetime(datetime.now(UTC) + timedelta(seconds=3)), True),
                          ("soon", False), ("-5", False)]
)  # fmt: skip
async def test_retry_after_is_honoured(service: Service, header: Any, waits: bool) -> None:
    value = header() if callable(header) else header

    def answer(count: int, body: dict[str, Any]) -> web.Response:
        if count == 1:
            return web.Response(status=429, headers={"retry-after": value})
        return web.json_response({"result": [[DOCUMENT]]})

    service.answer = answer
    started = time.monotonic()
    await search(service, "q")
    assert (time.monotonic() - started > 1.2) is waits


async def test_a_wait_has_an_end(service: Service) -> None:
    service.answer = lambda count, body: web.Response(status=503, headers={"retry-after": "3600"})
    client = ServiceClient(service.url, retries=1, max_backoff_s=0.01)
    started = time.monotonic()
    with pytest.raises(ToolServiceError, match="after 2 attempts"):
        await client.post("/retrieve", {"queries": []})
    assert time.monotonic() - started < 5
    await client.aclose()


async def test_connections_are_shared_by_a_workers_trajectories(service: Service) -> None:
    scope = WorkerScope()
    for _ in range(3):
        tool = Search({"retrieval_service_url": service.url})
        tool.scope = scope
        await tool.execute({"query": "q"})
        await tool.release()
    assert len(service.peers) == 1
    await scope.close()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"document_template": "{tile}"}, r"config\.document_template.*\{tile\}\. Did you mean 'title'"),
        ({"query_template": "{documents"}, r"config\.query_template"),
        ({"order": "best_frist"}, r"config\.order.*Did you mean 'best_first'"),
    ],
)
def test_a_rendering_that_cannot_work(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Search({"retrieval_service_url": "http://x", **config})


def test_verls_keys_are_understood(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text(
        "tools: [{class_name: search, config: {retrieval_service_url: 'http://x', num_workers: 120, rate_limit: 60, "
        "enable_global_rate_limit: false, timeout: 30, type: native}}]"
    )
    (spec,) = load_tools(tmp_path / "tools.yaml")
    assert spec.config == {
        "retrieval_service_url": "http://x",
        "type": "native",
        "max_concurrency": 60,
        "limits_per": "worker",
        "request_timeout_s": 30,
    }
    (tmp_path / "both.yaml").write_text(
        "tools: [{class_name: search, config: {retrieval_service_url: 'http://x', timeout: 3, request_timeout_s: 4}}]"
    )
    with pytest.raises(ConfigError, match="`timeout` is another name for `request_timeout_s`"):
        load_tools(tmp_path / "both.yaml")
