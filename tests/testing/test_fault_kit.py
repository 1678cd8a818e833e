"""The fault kit does what it says: every fault of the server as a client sees it, every fault of the tool wrapper."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl.errors import PluginError, ToolServiceError
from agentrl.plugins import load_tools
from agentrl.testing.faults import FaultServer, FaultyTool


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer({"/double": lambda body: {"result": 2 * body["x"]}}) as server:
        yield server


def ask(server: FaultServer, path: str = "/double", timeout: float = 5.0) -> httpx.Response:
    return httpx.post(server.url + path, json={"x": 21}, timeout=timeout, trust_env=False)


def test_without_faults_it_answers(server: FaultServer) -> None:
    assert ask(server).json() == {"result": 42}
    assert ask(server, "/other").status_code == 404
    assert server.requests == [("/double", {"x": 21}), ("/other", {"x": 21})]


def test_faults_come_one_by_one_and_then_it_answers(server: FaultServer) -> None:
    server.faults.extend(["503", "429", "malformed", "empty", "latency:0.2"])
    assert [ask(server).status_code for _ in range(2)] == [503, 429]
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        ask(server).json()
    assert ask(server).content == b""
    began = time.monotonic()
    assert ask(server).json() == {"result": 42}
    assert time.monotonic() - began >= 0.2
    assert ask(server).json() == {"result": 42}


@pytest.mark.parametrize("fault", ["drop", "cut"])
def test_broken_connections(server: FaultServer, fault: str) -> None:
    server.faults.append(fault)
    with pytest.raises(httpx.TransportError):
        ask(server)
    assert ask(server).status_code == 200


def test_a_request_that_hangs(server: FaultServer) -> None:
    server.faults.append("hang")
    with pytest.raises(httpx.ReadTimeout):
        ask(server, timeout=0.2)
    assert ask(server).status_code == 200


def test_killed_and_started_again_on_the_same_port(server: FaultServer) -> None:
    url = server.url
    server.kill()
    server.kill()
    with pytest.raises(httpx.ConnectError):
        ask(server)
    server.restart()
    assert server.url == url
    assert ask(server).status_code == 200


def test_a_lasting_fault(server: FaultServer) -> None:
    server.always = "500"
    server.faults.append("ok")
    assert [ask(server).status_code for _ in range(3)] == [200, 500, 500]


def test_it_leaves_no_thread() -> None:
    server = FaultServer({})
    server.close()
    server.close()
    assert "fault-server" not in {thread.name for thread in threading.enumerate()}


def faulty(**config: Any) -> FaultyTool:
    return FaultyTool({"tool": {"class_name": "calculator"}, **config})


async def outcome(tool: FaultyTool, **kwargs: Any) -> str:
    try:
        response = await tool.execute({"expression": "6*7"}, **kwargs)
    except (ToolServiceError, RuntimeError) as error:
        return type(error).__name__
    return "mistake" if response.is_error else response.text


async def test_shares_of_faults_and_the_same_places_again() -> None:
    shares = {"error": 0.2, "bug": 0.1, "mistake": 0.1}
    first = [await outcome(faulty(faults=shares, seed=3), fault_key=key) for key in range(300)]
    again = [await outcome(faulty(faults=shares, seed=3), fault_key=key) for key in range(300)]
    other = [await outcome(faulty(faults=shares, seed=4), fault_key=key) for key in range(300)]
    assert first == again
    assert first != other
    counts = Counter(first)
    assert 40 <= counts["ToolServiceError"] <= 80
    assert 15 <= counts["RuntimeError"] <= 45
    assert 15 <= counts["mistake"] <= 45
    assert counts["42"] == 300 - counts["ToolServiceError"] - counts["RuntimeError"] - counts["mistake"]


async def test_slow_calls_answer_late() -> None:
    began = time.monotonic()
    assert await outcome(faulty(faults={"slow": 1.0}, slow_s=0.1)) == "42"
    assert time.monotonic() - began >= 0.1


def test_it_wraps_a_tool_in_the_yaml(tmp_path: Path) -> None:
    text = """
tools:
- class_name: agentrl.testing.faults.FaultyTool
  config:
    tool: {class_name: calculator}
    faults: {FAULT: 0.05}
"""
    (tmp_path / "tools.yaml").write_text(text.replace("FAULT", "error"))
    (spec,) = load_tools(tmp_path / "tools.yaml")
    assert spec.name == "calculator"
    (tmp_path / "tools.yaml").write_text(text.replace("FAULT", "eror"))
    with pytest.raises(PluginError, match=r"unknown fault 'eror'\. Did you mean 'error'"):
        load_tools(tmp_path / "tools.yaml")
