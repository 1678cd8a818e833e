"""`POST /retrieve` over HTTP: both spellings, scores or none, limits, batching, the faults of known servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from prometheus_client import CollectorRegistry

from agentrl.errors import UserInputError
from agentrl.services.retrieval.app import create_app
from agentrl.services.retrieval.document_store import DocumentStore
from agentrl.services.retrieval.index import Index
from agentrl.services.retrieval.options import RetrievalOptions
from agentrl.services.retrieval.query_batching import QueryBatcher, SearchMetrics
from agentrl.services.retrieval.reloadable_index import ReloadableIndex
from agentrl.services.retrieval.result_cache import ResultCache

Running = Callable[[FastAPI], AbstractContextManager[httpx.Client]]
SKY = "Why is the sky blue?"
LIMITS = RetrievalOptions(max_topk=10, max_queries=8, max_query_chars=200, max_waiting=1000)


def make_app(folder: Path, options: RetrievalOptions = LIMITS, token: str | None = None) -> FastAPI:
    return create_app(ReloadableIndex(lambda: Index(folder), options.cache_bytes), options, token)


@pytest.fixture(scope="module")
def client(running: Running, sample_folder: Path) -> Iterator[httpx.Client]:
    with running(make_app(sample_folder)) as found:
        yield found


def post(client: httpx.Client, **body: object) -> httpx.Response:
    return client.post("/retrieve", json=body)


def test_a_batch_with_scores(client: httpx.Client) -> None:
    answer = post(client, queries=[SKY, "capital of Australia"], topk=2, return_scores=True)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    result = answer.json()["result"]
    assert list(answer.json()) == ["result"]
    assert [len(hits) for hits in result] == [2, 2]
    best = result[0][0]
    assert set(best) == {"document", "score"}
    assert best["document"]["id"] == "sample-1"
    title, _, body = best["document"]["contents"].partition("\n")
    assert title == '"Colour of the sky"'
    assert body.startswith("Air scatters")
    assert result[0][0]["score"] > result[0][1]["score"] > 0


@pytest.mark.parametrize("number", [0, 1, 2, 3, 8])
def test_bare_documents_for_any_number_of_queries(client: httpx.Client, number: int) -> None:
    """A known server returns them only for exactly two queries."""
    answer = post(client, queries=[SKY] * number, topk=1, return_scores=False)
    assert answer.status_code == 200
    result = answer.json()["result"]
    assert len(result) == number
    for hits in result:
        assert [document["id"] for document in hits] == ["sample-1"]
        assert "contents" in hits[0]


def test_the_other_spelling(client: httpx.Client) -> None:
    one = post(client, query=SKY, topk=2, return_scores=True).json()
    assert one == post(client, queries=[SKY], topk=2, return_scores=True).json()
    assert one == post(client, query=SKY, queries=None, topk=2, return_scores=True).json()


@pytest.mark.parametrize(
    "fields", [{}, {"topk": None}, {"topk": 0}, {"topk": 3}, {"topk": 3.0}, {"return_scores": None}]
)
def test_topk_null_0_or_absent_is_3(client: httpx.Client, fields: dict[str, object]) -> None:
    result = post(client, queries=["the capital of a country"], **fields).json()["result"]
    assert len(result[0]) == 3
    assert "id" in result[0][0]


@pytest.mark.parametrize("query", ["", "   ", "the of and", "zzzz", "\x00", "🦑"])
def test_a_query_that_matches_nothing_finds_nothing(client: httpx.Client, query: str) -> None:
    """Never the last document, which is what a FAISS id of -1 gives elsewhere, nor documents of score 0."""
    assert post(client, queries=[query, SKY], topk=1).json()["result"][0] == []


def test_a_query_that_is_too_long_is_cut_and_does_not_fail_its_batch(client: httpx.Client) -> None:
    long = f"{SKY} " + "x" * 300
    answer = post(client, queries=[SKY, long, SKY], topk=1, return_scores=True).json()
    alone = post(client, query=SKY, topk=1, return_scores=True).json()
    assert [found[0]["document"]["id"] for found in answer["result"]] == ["sample-1"] * 3
    assert answer["result"][0] == answer["result"][2] == alone["result"][0]
    assert answer["notes"] == [f"queries.1: got {len(long)} characters, searched for the first 200"]
    assert "notes" not in alone
    assert post(client, query=long).json()["notes"] == [answer["notes"][0].replace("queries.1", "queries.0")]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 422, '"queries"'),
        ({"queries": None}, 422, '"queries"'),
        ({"queries": [SKY], "query": SKY}, 422, "either"),
        ({"queries": SKY}, 422, "queries: "),
        ({"queries": [1]}, 422, "queries.0: "),
        ({"queries": [None]}, 422, "queries.0: "),
        ({"query": [SKY]}, 422, "query: "),
        ({"queries": [SKY] * 9}, 422, "at most 8"),
        ({"queries": [SKY], "topk": 11}, 422, "topk: Input should be less than or equal to 10 (got 11)"),
        ({"queries": [SKY], "topk": -1}, 422, "topk"),
        ({"queries": [SKY], "topk": "3"}, 422, "topk"),
        ({"queries": [SKY], "topk": 1.5}, 422, "topk"),
        ({"queries": [SKY], "topk": True}, 422, "topk"),
        ({"queries": [SKY], "return_scores": "yes"}, 422, "return_scores"),
        ({"queries": [SKY], "top_k": 3}, 422, "Did you mean 'topk'"),
        ([], 422, "the body"),
    ],
)
def test_requests_over_a_limit_or_of_another_form(client: httpx.Client, body: object, status: int, words: str) -> None:
    answer = client.post("/retrieve", json=body)
    assert answer.status_code == status
    assert words in answer.json()["detail"]
    assert len(answer.json()["detail"]) < 600


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"query": "\\ud800"}', b"[" * 10_000])
def test_a_body_that_is_not_json_is_400(client: httpx.Client, body: bytes) -> None:
    answer = client.post("/retrieve", content=body)
    assert answer.status_code == 400
    assert "JSON" in answer.json()["detail"]


def test_curl_without_a_content_type_works(client: httpx.Client) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert client.post("/retrieve", content=json.dumps({"query": SKY}), headers=headers).status_code == 200


def test_health_says_what_is_served(client: httpx.Client, sample_rows: list[object]) -> None:
    index = client.get("/health").json()["index"]
    assert (index["kind"], index["documents"], index["generation"]) == ("bm25", len(sample_rows), 1)
    assert len(index["sha256"]) == 64
    assert client.get("/ready").status_code == 200


def test_repeated_queries_come_from_the_cache(client: httpx.Client) -> None:
    def hits() -> float:
        lines = client.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("agentrl_retrieval_cache_hits_total"))

    first = post(client, query="helium spectrum", topk=2).content
    before = hits()
    assert (
        post(client, queries=["helium spectrum", "never asked before"], topk=2).json()["result"][0]
        == (json.loads(first)["result"][0])
    )
    assert hits() == before + 1
    post(client, query="helium spectrum", topk=1)
    assert hits() == before + 1


def test_concurrent_requests_get_their_own_answers(client: httpx.Client, sample_rows: list[dict[str, str]]) -> None:
    async def ask(http: httpx.AsyncClient, row: dict[str, str]) -> bool:
        body = {"queries": [row["text"][:200], row["title"] * 2], "topk": 1 + len(row["title"]) % 3}
        result = (await http.post("/retrieve", json=body)).json()["result"]
        return bool(result[0][0]["id"] == row["id"]) and all(len(hits) <= body["topk"] for hits in result)

    async def run() -> list[bool]:
        async with httpx.AsyncClient(base_url=client.base_url, trust_env=False, timeout=30) as http:
            return await asyncio.gather(*(ask(http, row) for row in sample_rows * 3))

    assert all(asyncio.run(run()))


def test_a_request_that_takes_too_long_is_504(running: Running, sample_folder: Path) -> None:
    options = RetrievalOptions(timeout_s=1e-9, cache_bytes=0)
    with running(make_app(sample_folder, options)) as client:
        answer = post(client, query=SKY)
        assert answer.status_code == 504
        assert "seconds" in answer.json()["detail"]
        assert client.get("/health").status_code == 200


async def test_too_many_waiting_queries_are_429(sample_folder: Path) -> None:
    options = RetrievalOptions(max_queries=2, max_waiting=3, threads=1, cache_bytes=0)
    served_index = ReloadableIndex(lambda: Index(sample_folder), 0)
    batcher = QueryBatcher(served_index, options, SearchMetrics(CollectorRegistry()))
    queries = ([SKY, "moon"], ["sun", "moon"], ["mars", "gold"], ["gold"])
    answers = await asyncio.gather(*(batcher.find(pair, 1) for pair in queries), return_exceptions=True)
    assert [isinstance(answer, HTTPException) for answer in answers] == [False, False, True, False]
    refused = answers[2]
    assert isinstance(refused, HTTPException)
    assert refused.status_code == 429
    assert refused.headers == {"Retry-After": "1"}
    assert len(await batcher.find(["mars"], 1)) == 1
    batcher.close()


async def test_waiting_requests_are_searched_together(sample_folder: Path) -> None:
    options = RetrievalOptions(threads=1, cache_bytes=0, max_batch=16)
    registry = CollectorRegistry()
    batcher = QueryBatcher(ReloadableIndex(lambda: Index(sample_folder), 0), options, SearchMetrics(registry))
    await asyncio.gather(*(batcher.find([f"moon {number}"], 1) for number in range(33)))
    assert registry.get_sample_value("agentrl_retrieval_batch_queries_count") == 3
    assert registry.get_sample_value("agentrl_retrieval_batch_queries_sum") == 33
    assert registry.get_sample_value("agentrl_retrieval_queries_waiting") == 0
    batcher.close()


def test_impossible_limits_are_refused() -> None:
    with pytest.raises(UserInputError, match="--max-waiting"):
        RetrievalOptions(max_waiting=10)
    with pytest.raises(UserInputError, match="--max-topk"):
        RetrievalOptions(max_topk=2)


def test_the_cache_is_bounded_and_forgets_the_oldest() -> None:
    cache = ResultCache(3000)
    for number in range(10):
        cache.put(str(number), 3, [(b"x" * 500, 1.0)])
        cache.get("0", 3)
    kept = [number for number in range(10) if cache.get(str(number), 3) is not None]
    assert kept == [0, 8, 9]
    cache.put("large", 3, [(b"x" * 4000, 1.0)])
    assert cache.get("large", 3) is None
    assert cache.get("0", 3) is not None


def test_there_is_no_document_minus_one(sample_folder: Path) -> None:
    store = DocumentStore(sample_folder)
    assert json.loads(store[0])["id"] == "sample-1"
    assert json.loads(store[len(store) - 1])["id"] == f"sample-{len(store)}"
    for number in (-1, len(store)):
        with pytest.raises(IndexError):
            store[number]
