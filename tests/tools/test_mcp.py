"""MCP tools against real servers of the official SDK, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from engine_servers import free_port

from agentrl.clients import WorkerScope
from agentrl.errors import ConfigError, PluginError, ToolServiceError
from agentrl.plugins import ToolSpec, load_tools
from agentrl.timeline import Timeline, TraceContext
from agentrl.types import ToolResponse

SERVER = str(Path(__file__).with_name("mcp_server.py"))
STDIO = {"command": sys.executable, "args": [SERVER]}


def write(folder: Path, servers: Any, selected: list[str] | None = None, **config: Any) -> Path:
    (folder / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    mcp = {"mcp_servers_config_path": "servers.json", "tool_selected_list": selected}
    (folder / "tools.yaml").write_text(json.dumps({"tools": [{"config": {"type": "mcp", **config}, "mcp": mcp}]}))
    return folder / "tools.yaml"


@pytest.fixture(scope="module")
def stdio(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ToolSpec]:
    return {spec.name: spec for spec in load_tools(write(tmp_path_factory.mktemp("stdio"), {"demo": STDIO}))}


@pytest.fixture
async def scope() -> AsyncIterator[WorkerScope]:
    scope = WorkerScope()
    yield scope
    await scope.close()


async def call(spec: ToolSpec, scope: WorkerScope | None, **arguments: Any) -> ToolResponse:
    """One call in a trajectory of its own."""
    tool = spec.build()
    tool.scope = scope
    await tool.create()
    try:
        return await tool.execute(arguments)
    finally:
        await tool.release()


def test_schemas_come_from_the_server(stdio: dict[str, ToolSpec]) -> None:
    assert list(stdio) == ["add", "count", "fail", "die", "nap", "trace"]
    function = stdio["add"].schema["function"]
    assert function["description"] == "Add two numbers."
    assert function["parameters"]["properties"]["a"]["type"] == "integer"
    assert stdio["add"].check_arguments({"a": 1}) is not None
    assert stdio["add"].check_arguments({"a": 1, "b": 2}) is None


async def test_one_process_serves_all_trajectories_of_a_worker(stdio: dict[str, ToolSpec], scope: WorkerScope) -> None:
    assert (await call(stdio["add"], scope, a=2, b=3)).text == "5"
    counts = await asyncio.gather(*(call(stdio["count"], scope) for _ in range(4)))
    pids = {int(response.text.split()[0]) for response in counts}
    assert len(pids) == 1
    assert sorted(response.text.split()[1] for response in counts) == ["1", "2", "3", "4"]
    failed = await call(stdio["fail"], scope)
    assert failed.is_error
    assert "fail" in failed.text
    with pytest.raises(ToolServiceError, match=r"MCP server 'demo': die failed: Connection closed"):
        await call(stdio["die"], scope)
    again = await call(stdio["count"], scope)
    assert again.text.endswith(" 1")
    assert int(again.text.split()[0]) not in pids
    await scope.close()
    assert not psutil.pid_exists(int(again.text.split()[0]))


async def test_a_server_that_answers_nobody_is_started_again(stdio: dict[str, ToolSpec], scope: WorkerScope) -> None:
    first = (await call(stdio["count"], scope)).text.split()[0]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await call(stdio["nap"], scope, seconds=60)
    assert (await call(stdio["count"], scope)).text.split()[0] != first
    assert not psutil.pid_exists(int(first))


async def test_http(http_server: str, tmp_path: Path, scope: WorkerScope) -> None:
    server = {"type": "streamable-http", "url": http_server, "headers": {"x-test": "1"}, "auth_token": "secret"}
    nap, add = load_tools(write(tmp_path, {"remote": server}, ["nap", "add"], timeout_s=7))
    assert [nap.name, add.name] == ["nap", "add"]
    assert add.timeout_s == 7.0
    assert (await call(add, scope, a=2, b=3)).text == "5"
    slow, quick = await asyncio.gather(call(nap, scope, seconds=0.2), call(add, None, a=1, b=1))
    assert (slow.text, quick.text) == ("rested", "2")


async def test_a_call_continues_the_trace_of_the_trajectory_that_makes_it(
    http_server: str, stdio: dict[str, ToolSpec], tmp_path: Path, scope: WorkerScope
) -> None:
    (remote,) = load_tools(write(tmp_path, {"remote": {"url": http_server}}, ["trace"]))
    traced = Timeline(TraceContext("ab" * 16, "cd" * 8))

    async def traced_call(spec: ToolSpec) -> str:
        with traced.span("tool", spec.name) as span:
            answer = await call(spec, scope)
        return answer.text.replace(f"00-{'ab' * 16}-{span.span_id}-01", "its span")

    for _ in range(2):
        assert await asyncio.gather(*(traced_call(remote) for _ in range(3))) == ["its span its span"] * 3
        assert (await call(remote, scope)).text == "None None"
    assert await traced_call(stdio["trace"]) == "its span None"


@pytest.fixture(scope="module")
def http_server() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, SERVER, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 30
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/mcp", timeout=1)
            break
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/mcp"
    process.kill()
    process.wait()


def test_a_tool_that_no_server_offers(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"tools\[0\]\.mcp\.tool_selected_list.*'ad'\. Did you mean 'add'\?"):
        load_tools(write(tmp_path, {"demo": STDIO}, ["nap", "ad"]))


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ({"command": "/no/such/program"}, r"MCP server 's' cannot be reached: FileNotFoundError"),
        (
            {"command": sys.executable, "args": ["-c", "raise SystemExit('bad key')"]},
            r"'s' .*error output ends with: bad key",
        ),
        ({"command": "sleep", "args": ["60"]}, r"MCP server 's' did not start within 0\.5 s"),
        ({"url": "http://127.0.0.1:9/mcp"}, r"MCP server 's' cannot be reached: \w+"),
        ({}, r"MCP server 's': got \{\}, wanted `command` \(stdio\) or `url` \(HTTP\)"),
        ({"command": "x", "arg": []}, r"unknown key 'arg'\. Did you mean 'args'"),
        ({"url": "http://x", "type": "sse"}, r"transport 'sse'"),
    ],
)
def test_servers_that_cannot_be_used(tmp_path: Path, server: Any, says: str) -> None:
    with pytest.raises(PluginError, match=says):
        load_tools(write(tmp_path, {"s": server}, start_timeout_s=0.5 if "sleep" in str(server) else 20))


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"config": {"type": "mcp"}}, r"wanted `mcp: \{mcp_servers_config_path, tool_selected_list\}`"),
        ({"config": {"type": "mcp"}, "mcp": {"servers": "x"}}, r"unknown key 'servers'"),
        ({"config": {"type": "mcp"}, "mcp": {}}, r"mcp_servers_config_path: got None"),
        ({"config": {"type": "mcp"}, "mcp": {"mcp_servers_config_path": "no.json"}}, r"no\.json does not exist"),
        ({"config": {"type": "mcp"}, "mcp": {"mcp_servers_config_path": "tools.yaml"}}, r"wanted \{mcpServers"),
        ({"config": {"type": "mcp"}, "mcp": {"mcp_servers_config_path": "bad.json"}}, r"is not JSON"),
        (
            {"config": {"type": "mcp"}, "mcp": {"mcp_servers_config_path": "x", "tool_selected_list": "add"}},
            r"tool_selected_list: got 'add', wanted a list",
        ),
        ({"class_name": "calculator", "mcp": {}}, r"unknown key 'mcp'"),
        ({"config": {"type": "mpc"}}, r"config\.type: got 'mpc'\. Did you mean 'mcp'"),
        ({"class_name": "no_such", "config": {"type": "mcp"}, "mcp": {"mcp_servers_config_path": "x"}}, "no_such"),
    ],
)
def test_entries_that_cannot_be_used(tmp_path: Path, entry: Any, says: str) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": [entry]}))
    with pytest.raises((ConfigError, PluginError), match=says):
        load_tools(tmp_path / "tools.yaml")


def test_verls_class_name_is_understood(tmp_path: Path) -> None:
    file = write(tmp_path, {"demo": STDIO}, ["add"])
    entries = json.loads(file.read_text())
    entries["tools"][0]["class_name"] = "verl.tools.mcp_base_tool.MCPBaseTool"
    file.write_text(json.dumps(entries))
    assert [spec.name for spec in load_tools(file)] == ["add"]
