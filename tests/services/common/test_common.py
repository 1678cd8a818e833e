"""Access control, probes, logs and the graceful server, over real connections."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from agentrl.errors import UserInputError
from agentrl.services.common.access_control import refuse_unprotected_host
from agentrl.services.common.http_server import listen
from agentrl.services.common.standard_routes import add_standard_routes

Running = Callable[[FastAPI], AbstractContextManager[httpx.Client]]


def make_app(token: str | None = None, reason: str | None = None) -> FastAPI:
    app = FastAPI(title="a service")

    @app.post("/echo")
    async def echo(body: dict[str, int]) -> dict[str, int]:
        return body

    @app.get("/items/{name}")
    async def item(name: str) -> str:
        return name

    @app.get("/broken")
    async def broken() -> None:
        raise KeyError("secret")

    add_standard_routes(
        app,
        service="test",
        token=token,
        registry=CollectorRegistry(),
        health=lambda: {"answers": 42},
        not_ready=lambda: reason,
        max_body_bytes=1000,
    )
    return app


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[httpx.Client]:
    with running(make_app()) as found:
        yield found


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    refuse_unprotected_host(host, None, False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.0.4", "example.org", "127.0.0.1.example.org"])
def test_other_hosts_need_a_token_or_insecure(host: str) -> None:
    with pytest.raises(UserInputError, match="--token"):
        refuse_unprotected_host(host, None, False)
    refuse_unprotected_host(host, "secret", False)
    refuse_unprotected_host(host, None, True)


def test_an_empty_token_is_no_token() -> None:
    with pytest.raises(UserInputError, match="empty"):
        refuse_unprotected_host("127.0.0.1", "", True)


def test_probes_and_metrics(client: httpx.Client) -> None:
    health = client.get("/health").json()
    assert {"status": "ok", "service": "test", "answers": 42}.items() <= health.items()
    assert client.get("/ready").json() == {"status": "ready"}
    client.get("/items/a"), client.get("/items/b"), client.get("/nowhere/1"), client.get("/nowhere/2")
    page = client.get("/metrics").text
    assert 'agentrl_test_requests_total{method="GET",route="/items/{name}",status="200"} 2.0' in page
    assert 'agentrl_test_requests_total{method="any",route="unmatched",status="404"} 2.0' in page
    assert "nowhere" not in page


def test_not_ready_is_503_with_the_reason(running: Running) -> None:
    with running(make_app(reason="warming up")) as client:
        answer = client.get("/ready")
        assert (answer.status_code, answer.json()) == (503, {"detail": "warming up"})
        assert client.get("/health").status_code == 200


def test_a_token_guards_everything_but_the_probes(running: Running) -> None:
    with running(make_app(token="sésame")) as client:
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        for path in ("/metrics", "/items/a", "/openapi.json", "/nowhere"):
            answer = client.get(path)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "Authorization" in answer.json()["detail"]
        for given in ("Bearer x", "Bearer", "Basic sésame", "Bearer sésame2", "Bearer \xff"):
            assert client.get("/items/a", headers={"Authorization": given.encode()}).status_code == 401
        assert client.get("/items/a", headers={"Authorization": "Bearer sésame".encode()}).status_code == 200
        assert client.get("/items/a", headers={"Authorization": "bearer sésame".encode()}).status_code == 200


def test_the_document_says_whether_a_token_is_needed(client: httpx.Client) -> None:
    document = make_app(token="secret\n").openapi()
    assert document["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    needs = {
        path: route[method].get("security", document["security"])
        for path, route in document["paths"].items()
        for method in route
    }
    assert needs == {"/health": [], "/ready": []} | {
        path: [{"token": []}] for path in ("/metrics", "/echo", "/items/{name}", "/broken")
    }
    open_to_all = client.get("/openapi.json").json()
    assert "security" not in open_to_all
    assert "securitySchemes" not in open_to_all["components"]


def test_a_line_end_behind_a_token_is_none_of_it(running: Running) -> None:
    with running(make_app(token="secret\n")) as client:
        assert client.get("/items/a", headers={"Authorization": "Bearer secret"}).status_code == 200
        assert client.get("/items/a", headers={"Authorization": "Bearer secre"}).status_code == 401


def test_web_pages_of_others_are_refused(client: httpx.Client) -> None:
    assert client.post("/echo", json={"a": 1}, headers={"Origin": "https://evil.example"}).status_code == 403
    own = str(client.base_url).rstrip("/")
    assert client.post("/echo", json={"a": 1}, headers={"Origin": own}).status_code == 200
    # a name of the page's own that now leads here
    renamed = {"Origin": "http://evil.example:8000", "Host": "evil.example:8000"}
    assert client.post("/echo", json={"a": 1}, headers=renamed).status_code == 403
    local = {"Origin": "http://localhost:8000", "Host": "localhost:8000"}
    assert client.post("/echo", json={"a": 1}, headers=local).status_code == 200


def test_bodies_over_the_limit_are_413(client: httpx.Client) -> None:
    assert client.post("/echo", content=b" " * 1001, headers={"Content-Type": "application/json"}).status_code == 413
    chunks = (b" " * 100 for _ in range(11))
    answer = client.post("/echo", content=chunks, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert "1000" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "not JSON"),
        (b'{"a": "x"}', 422, "a: Input should be a valid integer"),
        (b"[]", 422, "the body"),
        (b'{"a": "\\ud800"}', 422, ""),
        (b"\xff", 400, ""),
        (b"[" * 900, 400, ""),
    ],
)
def test_unusable_bodies_say_why(client: httpx.Client, body: bytes, status: int, words: str) -> None:
    answer = client.post("/echo", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert words in answer.json()["detail"]


def test_a_bug_is_500_json_without_its_text(client: httpx.Client) -> None:
    answer = client.get("/broken")
    assert answer.status_code == 500
    assert "KeyError" in answer.json()["detail"]
    assert "secret" not in answer.text
    assert client.get("/health").status_code == 200


def test_request_ids_are_taken_over_when_they_are_sane(client: httpx.Client) -> None:
    assert client.get("/health", headers={"X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert client.get("/health", headers={"X-Request-ID": "a b"}).headers["x-request-id"] != "a b"


SLOW_SERVICE = """
import asyncio, sys
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from agentrl.services.common.standard_routes import add_standard_routes
from agentrl.services.common.http_server import serve_app
app = FastAPI(title="slow")
hangups = []
@app.get("/slow")
async def slow():
    await asyncio.sleep(0.5)
    return len(hangups)
@app.get("/never")
async def never():
    print("begun", flush=True)
    await asyncio.sleep(60)
add_standard_routes(
    app, service="slow", token=None, registry=CollectorRegistry(), health=dict, not_ready=lambda: None
)
serve_app(app, "127.0.0.1", 0, on_hangup=lambda: hangups.append(1), grace_s=int(sys.argv[1]))
"""


def test_sigterm_finishes_open_requests_and_exits_0() -> None:
    process = subprocess.Popen([sys.executable, "-c", SLOW_SERVICE, "10"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = json.loads(process.stderr.readline())["url"]

    async def run() -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            os.kill(process.pid, signal.SIGHUP)
            answer = asyncio.create_task(client.get(f"{url}/slow"))
            await asyncio.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            return await answer

    time.sleep(0.2)
    answer = asyncio.run(run())
    assert (answer.status_code, answer.text) == (200, "1")
    _, log = process.communicate(timeout=20)
    assert process.returncode == 0, log
    assert json.loads(log.splitlines()[-1])["event"] == "stopped"


def test_a_request_that_outlasts_the_grace_is_told_so() -> None:
    command = [sys.executable, "-c", SLOW_SERVICE, "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process, ThreadPoolExecutor(1) as pool:
        assert process.stderr is not None
        assert process.stdout is not None
        url = json.loads(process.stderr.readline())["url"]
        answer = pool.submit(httpx.get, f"{url}/never", timeout=30, trust_env=False)
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        assert answer.result().status_code == 503
        assert answer.result().json() == {
            "detail": "the service is stopping and did not wait any longer for this request"
        }
        assert "x-request-id" in answer.result().headers
        assert process.wait(30) == 0, process.stderr.read()


STOPPED_AT_ONCE = """
import logging, signal
from fastapi import FastAPI
from agentrl.services.common.http_server import serve_app
def stop(record):
    if record.getMessage() == "serving":
        signal.raise_signal(signal.SIGTERM)
    return True
logging.getLogger("agentrl.services").addFilter(stop)
serve_app(FastAPI(), "127.0.0.1", 0)
"""


def test_sigterm_counts_from_the_moment_in_which_the_service_says_that_it_serves() -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED_AT_ONCE], stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr.splitlines()[-1])["event"] == "stopped"


@pytest.mark.parametrize("service", ["retrieval", "sandbox"])
def test_sigterm_at_the_start_leaves_nothing(service: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from agentrl.cli import main; main()", "serve", service, "--port", "0"]
    process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)})
    try:
        while process.poll() is None and not list(tmp_path.glob("agentrl-*/*")):
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_an_error() -> None:
    with listen("127.0.0.1", 0) as first, pytest.raises(UserInputError, match=r"cannot listen on 127\.0\.0\.1:"):
        listen("127.0.0.1", first.getsockname()[1])
    with pytest.raises(UserInputError, match="cannot listen"):
        listen("127.0.0.1", 70000)
