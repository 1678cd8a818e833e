"""The index is exchanged while requests run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from agentrl.services.retrieval.app import create_app
from agentrl.services.retrieval.index import Index
from agentrl.services.retrieval.options import RetrievalOptions
from agentrl.services.retrieval.reloadable_index import ReloadableIndex

Running = Callable[[FastAPI], AbstractContextManager[httpx.Client]]
Build = Callable[..., Path]


def rows(generation: int) -> list[dict[str, object]]:
    return [{"id": f"{generation}-{n}", "contents": f"common word{n} {generation}"} for n in range(20)]


@pytest.fixture
def make_app(build: Build) -> Callable[[str | None], FastAPI]:
    def make(token: str | None) -> FastAPI:
        folder = build(rows(1))
        return create_app(ReloadableIndex(lambda: Index(folder), 10**6), RetrievalOptions(), token)

    return make


def test_no_request_is_lost_while_the_index_changes(
    running: Running, build: Build, make_app: Callable[[str | None], FastAPI]
) -> None:
    with running(make_app("secret")) as client:
        client.headers["Authorization"] = "Bearer secret"
        stop, problems, seen = threading.Event(), [], set()

        def ask() -> None:
            with httpx.Client(base_url=client.base_url, headers=client.headers, trust_env=False) as own:
                while not stop.is_set():
                    answer = own.post("/retrieve", json={"queries": ["common", "word3"], "topk": 2})
                    found = {d["id"].split("-")[0] for hits in answer.json().get("result", [[]]) for d in hits}
                    seen.update(found)
                    if answer.status_code != 200 or len(found) != 1:
                        problems.append(answer.text)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for generation in (2, 3, 4):
            build(rows(generation), force=True)
            answer = client.post("/reload")
            assert answer.status_code == 200
            assert answer.json()["generation"] == generation
            after = client.post("/retrieve", json={"query": "common", "topk": 1}).json()
            assert after["result"][0][0]["id"].startswith(f"{generation}-")
        stop.set()
        for thread in threads:
            thread.join()
        assert not problems
        assert {"1", "4"} <= seen | {"1"}
        assert client.get("/health").json()["index"]["generation"] == 4


class Held(Index):
    """An index whose searches wait for a word."""

    began, goes_on = threading.Semaphore(0), threading.Semaphore(0)

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[bytes, float]]]:
        self.began.release()
        assert self.goes_on.acquire(timeout=30)
        return super().search(queries, k)


def test_a_request_is_answered_from_the_index_with_which_it_began(running: Running, build: Build) -> None:
    folder = build(rows(1))
    options = RetrievalOptions(max_batch=2, threads=1)
    app = create_app(ReloadableIndex(lambda: Held(folder), 10**6), options, "secret")
    with running(app) as client, ThreadPoolExecutor(2) as pool:
        client.headers["Authorization"] = "Bearer secret"

        def ask(*queries: str) -> Future[httpx.Response]:
            return pool.submit(client.post, "/retrieve", json={"queries": queries, "topk": 1})

        def generations(answer: Future[httpx.Response]) -> list[str]:
            return [hits[0]["id"].split("-")[0] for hits in answer.result().json()["result"]]

        Held.goes_on.release()
        ask("word0").result()  # is in the cache of the first index from now on
        Held.began.acquire()
        old = ask(*(f"word{n}" for n in range(6)))
        Held.began.acquire()
        build(rows(2), force=True)
        assert client.post("/reload").json()["generation"] == 2
        new = ask("word0", "word7")
        while "agentrl_retrieval_queries_waiting 3.0" in client.get("/metrics").text:
            time.sleep(0.01)
        Held.goes_on.release(10)
        assert (generations(old), generations(new)) == (["1"] * 6, ["2"] * 2)


def test_a_broken_index_leaves_the_old_one(
    running: Running, build: Build, make_app: Callable[[str | None], FastAPI]
) -> None:
    with running(make_app("secret")) as client:
        client.headers["Authorization"] = "Bearer secret"
        folder = build(rows(2), force=True)
        (folder / "bm25" / "vocab.index.json").write_text("{}")
        answer = client.post("/reload")
        assert answer.status_code == 409
        assert "vocab.index.json" in answer.json()["detail"]
        found = client.post("/retrieve", json={"query": "common", "topk": 1}).json()
        assert found["result"][0][0]["id"].startswith("1-")
        assert client.get("/health").json()["index"]["generation"] == 1
        build(rows(3), force=True)
        assert client.post("/reload").json()["generation"] == 2


def test_reloading_over_http_needs_a_token(running: Running, make_app: Callable[[str | None], FastAPI]) -> None:
    app = make_app(None)
    with running(app) as client:
        answer = client.post("/reload")
        assert answer.status_code == 403
        assert "SIGHUP" in answer.json()["detail"]


def test_the_command_serves_reloads_on_sighup_and_ends_on_sigterm(build: Build) -> None:
    folder = build(rows(1))
    command = [sys.executable, "-m", "agentrl.services.retrieval", "--index", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        url = json.loads(line)["url"]
        with httpx.Client(base_url=url, trust_env=False, timeout=20) as client:
            assert client.get("/health").json()["index"]["generation"] == 1
            build(rows(2), force=True)
            os.kill(process.pid, signal.SIGHUP)
            until = time.monotonic() + 20
            while client.get("/health").json()["index"]["generation"] == 1 and time.monotonic() < until:
                time.sleep(0.05)
            found = client.post("/retrieve", json={"query": "common", "topk": 1}).json()
            assert found["result"][0][0]["id"].startswith("2-")
            (folder / "index.json").unlink()
            os.kill(process.pid, signal.SIGHUP)
            events = []
            while "reload failed" not in events:
                events.append(json.loads(process.stderr.readline())["event"])
            assert client.post("/retrieve", json={"query": "word3"}).status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=20)
    assert process.returncode == 0, log
    events += [json.loads(line)["event"] for line in log.splitlines()]
    assert {"reloaded", "reload failed", "stopped"} <= set(events)
