"""The search client against a real HTTP server that misbehaves on demand."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from agentrl.errors import ToolServiceError
from agentrl.tools.search import Search

Answer = Callable[[int, dict[str, Any]], web.Response]
DOCUMENT = {"id": "1", "contents": '"Title"\nBody text'}


class Service:
    """Answers the k-th request as told."""

    def __init__(self) -> None:
        self.answer: Answer = lambda count, body: web.json_response({"result": [[] for _ in body["queries"]]})
        self.bodies: list[dict[str, Any]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        return self.answer(len(self.bodies), self.bodies[-1])


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
