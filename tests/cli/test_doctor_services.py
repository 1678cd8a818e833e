"""`agentrl doctor` asks each address that a run names: whether it answers, and is what the run takes it for."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli.doctor.answers import check_services
from agentrl.cli.doctor.findings import Finding, Severity
from agentrl.cli.doctor.services import Role, Service, services_of
from agentrl.config import RunConfig, load_config


@dataclass
class Server:
    """What a server answers: `GET /health` -> status and body. It has no other paths, and takes POST."""

    url: str = ""
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    headers: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.headers.append(dict(self.headers))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = made.answers.get(f"{self.command} {self.path}", (404, {"detail": "Not Found"}))
            self.send_response(status)
            self.end_headers()
            self.wfile.write((body if isinstance(body, str) else json.dumps(body)).encode())

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler) as made.url:
        yield made


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server that runs while the block does."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


def found_at(service: Service) -> Finding:
    (found,) = check_services([service])
    return found


ROLES = [role for role in Role if role is not Role.OTHER]
WELL = (200, "")
ENGINE = {"GET /health": WELL, "GET /model_info": (200, {"model_path": "/models/Qwen3-8B", "weight_version": "0"})}
VLLM = {"GET /health": WELL, "GET /weight_info": (200, {"weight_version": "0"})}
VLLM["GET /v1/models"] = (200, {"data": [{"id": "policy", "root": "Qwen/Qwen3-8B", "owned_by": "vllm"}]})
JUDGE = {"GET /v1/models": (200, {"data": [{"id": "Qwen/Qwen3-8B", "owned_by": "vllm"}]})}
OWN = {"GET /health": (200, {"service": "sandbox"}), "POST /run_code": (422, {})}
OTHERS = {"POST /run_code": (422, {})}
MCP = {"POST /mcp": (400, {"jsonrpc": "2.0", "error": {"code": -32600}})}
COLLECTOR = {"POST /v1/traces": (200, "")}


@pytest.mark.parametrize(
    ("role", "path", "answers", "told"),
    [
        (Role.ENGINE, "", ENGINE, "/models/Qwen3-8B"),
        (Role.SANDBOX, "/run_code", OWN, "sandbox"),
        (Role.SANDBOX, "", OTHERS, "sandbox"),
        (Role.JUDGE, "/v1", JUDGE, "Qwen/Qwen3-8B"),
        (Role.JUDGE, "/v1/chat/completions", {"POST /v1/chat/completions": (400, {})}, ""),
        (Role.MCP, "/mcp", MCP, "MCP server"),
        (Role.COLLECTOR, "/v1/traces", COLLECTOR, "collector of traces"),
        (Role.COLLECTOR, "/v1/traces", {"POST /v1/traces": (401, "")}, "collector of traces"),
        (Role.OTHER, "/anything", {}, ""),
    ],
)
def test_the_right_one(server, role, path, answers, told):
    server.answers = answers
    service = Service("key", server.url + path, role, "Qwen/Qwen3-8B")
    assert found_at(service) == Finding(
        "services", Severity.OK, f"key: {service.url} answers" + (f" ({told})" if told else "")
    )


def test_vllm_has_an_api_of_its_own(server):
    server.answers = VLLM
    engine = Service("key", server.url, Role.ENGINE, "Qwen3-8B", "vllm")
    assert found_at(engine).text == f"key: {server.url} answers (Qwen/Qwen3-8B)"
    found = found_at(Service("key", server.url, Role.ENGINE, "Qwen3-8B"))
    assert (found.verdict, found.todo) == (Severity.WRONG, "actor_rollout_ref.rollout.name=vllm")
    server.answers = ENGINE
    assert found_at(engine).todo == "actor_rollout_ref.rollout.name=sglang"
    server.answers = {"GET /health": WELL}
    assert "VLLM_SERVER_DEV_MODE=1" in found_at(engine).todo


@pytest.mark.parametrize("role", ROLES)
def test_a_server_of_files_is_none_of_them(role, capfd):
    with serving(SimpleHTTPRequestHandler) as url:
        found = found_at(Service("key", url, role, "m"))
    assert found.verdict is (Severity.NOTE if role is Role.COLLECTOR else Severity.WRONG)
    assert re.search(r" is no | does not serve ", found.text)
    assert found.todo


@pytest.mark.parametrize("role", ROLES)
def test_what_does_not_speak_http_is_none_of_them(role):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=lambda: listener.accept()[0].close() or listener.accept()[0].close()).start()
        found = found_at(Service("key", f"http://127.0.0.1:{listener.getsockname()[1]}", role))
    assert found.verdict is (Severity.NOTE if role is Role.COLLECTOR else Severity.WRONG)
    assert "does not answer as an HTTP server" in found.text


@pytest.mark.parametrize("role", [Role.ENGINE, Role.RETRIEVAL, Role.JUDGE])
def test_another_service_of_agentrl(server, role):
    server.answers = OWN
    found = found_at(Service("key", server.url, role))
    assert found.verdict is Severity.WRONG
    assert found.text == f"key: at {server.url} is agentrl's sandbox service, wanted {role}"


@pytest.mark.parametrize("role", [role for role in Role if role not in (Role.MCP, Role.COLLECTOR)])
def test_one_that_is_not_well(server, role):
    server.answers = OWN | {"GET /health": (503, "loading")}
    found = found_at(Service("key", server.url, role))
    assert (found.verdict, found.text) == (
        Severity.WRONG,
        f"key: {server.url} is not well: /health answers 503: loading",
    )


def test_an_engine_that_is_not_well(server):
    server.answers = ENGINE | {"GET /health": (503, "")}
    found = found_at(Service("key", server.url, Role.ENGINE, "Qwen3-8B"))
    assert (found.verdict, found.text) == (Severity.WRONG, f"key: {server.url} fails its health check")


def test_other_models(server, tmp_path):
    server.answers = ENGINE | JUDGE
    engine = found_at(Service("key", server.url, Role.ENGINE, "Qwen/Qwen3-4B"))
    assert engine.verdict is Severity.NOTE
    assert engine.text == f"key: {server.url} serves /models/Qwen3-8B, and the run trains Qwen/Qwen3-4B"
    judge = found_at(Service("key", f"{server.url}/v1", Role.JUDGE, "default"))
    assert (judge.verdict, judge.todo) == (Severity.NOTE, "reward_model.judge.model=Qwen/Qwen3-8B")
    server.answers = {"GET /v1/models": (200, {"data": [{"id": "x", "owned_by": "sglang"}]})}
    assert found_at(Service("key", f"{server.url}/v1", Role.JUDGE, "default")).verdict is Severity.OK
    (first, second) = (tmp_path / name / "huggingface" for name in "ab")
    first.mkdir(parents=True)
    second.mkdir(parents=True)
    server.answers = ENGINE | {"GET /model_info": (200, {"model_path": str(first)})}
    assert found_at(Service("key", server.url, Role.ENGINE, str(first))).verdict is Severity.OK
    assert found_at(Service("key", server.url, Role.ENGINE, str(second))).verdict is Severity.NOTE


def test_keys_are_sent_and_may_be_refused(server):
    server.answers = {"GET /v1/models": (401, ""), "POST /run_code": (403, "")}
    for role, path in ((Role.JUDGE, "/v1"), (Role.SANDBOX, "")):
        found = found_at(Service("key", server.url + path, role, headers={"Authorization": "Bearer x"}))
        assert found.verdict is Severity.WRONG
        assert found.text.endswith(" to Authorization")
    assert {headers.get("authorization", headers.get("Authorization")) for headers in server.headers} == {"Bearer x"}


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    found = found_at(Service("reward_model.sandbox_fusion.url", url, Role.SANDBOX))
    assert (found.verdict, found.todo) == (Severity.WRONG, f"start it: agentrl serve sandbox --port {port}")
    assert found_at(Service("trainer.otlp_endpoint", url, Role.COLLECTOR)).verdict is Severity.NOTE
    assert "wanted http://host:port" in found_at(Service("key", "http://127.0.0.1:99999/v1", Role.JUDGE)).text
    (found,) = check_services([])
    assert found.verdict is Severity.OK


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    return load_config("demo")


def test_the_services_of_a_run(config, tmp_path, monkeypatch):
    assert services_of(config) == []
    (tmp_path / "servers.json").write_text(
        json.dumps({"mcpServers": {"remote": {"url": "http://d:4/mcp", "auth_token": "t"}, "here": {"command": "x"}}})
    )
    (tmp_path / "mine.yaml").write_text(
        "tools:\n"
        "- {class_name: search, config: {retrieval_service_url: 'http://a:1/retrieve', headers: {k: v}}}\n"
        "- {config: {type: mcp}, mcp: {mcp_servers_config_path: servers.json}}\n"
    )
    keys = [
        f"actor_rollout_ref.rollout.multi_turn.tool_config_path={tmp_path}/mine.yaml",
        "actor_rollout_ref.rollout.server.addresses=['http://e:5']",
        "reward_model.sandbox_fusion.url=http://b:2",
        "reward_model.judge.base_url=http://c:3/v1",
        "reward_model.judge.rubric=good",
        "trainer.otlp_endpoint=http://f:6",
    ]
    given = load_config("demo", keys)
    token = {"Authorization": "Bearer t"}
    assert services_of(given) == [
        Service("rollout.server.addresses", "http://e:5", Role.ENGINE, given.actor_rollout_ref.model.path),
        Service("reward_model.sandbox_fusion.url", "http://b:2", Role.SANDBOX),
        Service("reward_model.judge.base_url", "http://c:3/v1", Role.JUDGE, "default"),
        Service("mine.yaml: retrieval_service_url", "http://a:1/retrieve", Role.RETRIEVAL, headers={"k": "v"}),
        Service("servers.json: remote", "http://d:4/mcp", Role.MCP, headers=token),
        Service("trainer.otlp_endpoint", "http://f:6/v1/traces", Role.COLLECTOR),
    ]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://g:7/")
    searched = services_of(load_config("demo", [*keys[:1], "retriever.url=http://h:8"]))
    assert [service.url for service in searched] == ["http://h:8", "http://d:4/mcp", "http://g:7/v1/traces"]
