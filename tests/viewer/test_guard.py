"""Who may see the page: names that rebind DNS, tokens, and what a browser may do with an answer."""

from __future__ import annotations

import tomllib
from pathlib import Path

import httpx
import pytest
from made_dumps import write_run

from agentrl.observability.viewer.guard import HEADERS, Access, is_local
from agentrl.observability.viewer.runs import RunSet
from agentrl.observability.viewer.server import STATIC, create_app

LOCAL = Access("127.0.0.1", frozenset({"box"}))
OPEN = Access("0.0.0.0", frozenset({"box", "box.example"}), "secret-token")


def client(tmp_path: Path, access: Access) -> httpx.AsyncClient:
    runs = RunSet([write_run(tmp_path / "run")])
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(runs, access)), base_url="http://127.0.0.1:4321", trust_env=False
    )


@pytest.mark.parametrize(
    ("access", "host", "allowed"),
    [
        (LOCAL, "127.0.0.1:4321", True),
        (LOCAL, "localhost:9999", True),  # through a tunnel of ssh
        (LOCAL, "LOCALHOST", True),
        (LOCAL, "[::1]:4321", True),
        (LOCAL, "127.8.8.8", True),
        (LOCAL, "box:80", True),
        (LOCAL, "evil.example", False),
        (LOCAL, "localhost.evil.example", False),
        (LOCAL, "192.168.1.4:4321", False),
        (LOCAL, "", False),
        (LOCAL, "[", False),
        (OPEN, "192.168.1.4:4321", True),
        (OPEN, "box.example.", True),
        (OPEN, "evil.example", False),
    ],
)
async def test_the_host_of_a_request(tmp_path: Path, access: Access, host: str, allowed: bool) -> None:
    async with client(tmp_path, access) as http:
        answer = await http.get("/api/runs", headers={"Host": host, "Authorization": "Bearer secret-token"})
    assert answer.status_code == (200 if allowed else 421), answer.text
    assert allowed or "got the Host" in answer.json()["error"]


async def test_without_the_token_nothing_is_told(tmp_path: Path) -> None:
    async with client(tmp_path, OPEN) as http:
        for path in ("/", "/api/runs", "/static/x", "/?token=wrong", "/api/runs?token=secret-token", "/none"):
            answer = await http.get(path)
            assert (answer.status_code, "run" in answer.text.replace("agentrl", "")) == (401, False), path
        for header in ({"Authorization": "Bearer x"}, {"Authorization": "Basic secret-token"}, {"Cookie": "a=b; ;="}):
            assert (await http.get("/api/runs", headers=header)).status_code == 401


async def test_the_token_of_the_address_becomes_a_cookie(tmp_path: Path) -> None:
    async with client(tmp_path, OPEN) as http:
        answer = await http.get("/", params={"token": "secret-token"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert (await http.get("/api/runs")).status_code == 200


@pytest.mark.parametrize("path", ["/api/runs", "/api/none", "/static/none", "/api/runs?token=%ff%00"])
async def test_every_answer_carries_the_headers(tmp_path: Path, path: str) -> None:
    async with client(tmp_path, LOCAL) as http:
        answer = await http.get(path)
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == ("no-store" if path.startswith("/api") else "no-cache")


async def test_no_file_beside_the_page_is_served(tmp_path: Path) -> None:
    async with client(tmp_path, LOCAL) as http:
        for path in (
            "/static/../server.py",
            "/static/%2e%2e/server.py",
            "/static//etc/passwd",
            "/docs",
            "/openapi.json",
        ):
            assert (await http.get(path)).status_code == 404, path


async def test_nothing_can_be_changed(tmp_path: Path) -> None:
    async with client(tmp_path, LOCAL) as http:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert (await http.request(method, "/api/runs")).status_code == 405


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("[::1]", True), ("0.0.0.0", False), ("box", False)],
)
def test_which_addresses_only_this_machine_reaches(host: str, local: bool) -> None:
    assert is_local(host) is local


def test_every_file_of_the_page_is_installed() -> None:
    """A wheel holds what `package-data` names."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["agentrl.observability.viewer"]
    named = {file for pattern in patterns for file in STATIC.parent.glob(pattern)}
    files = {file for file in STATIC.rglob("*") if file.is_file()}
    assert STATIC / "index.html" in files <= named
