"""docs/write_a_tool.md: its tools pass its own test, and its YAML loads."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from agentrl.plugins import load_tools
from agentrl.rollout.tools.limits import CallLimits
from agentrl.testing.contracts import check_tool

PAGE = (Path(__file__).parents[2] / "docs" / "write_a_tool.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(python|yaml)\n(.*?)```", PAGE, re.DOTALL)


def block(kind: str, holds: str) -> str:
    (found,) = [text for name, text in BLOCKS if name == kind and holds in text]
    return str(found)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_the_function(folder: Path) -> None:
    (folder / "my_tools.py").write_text(block("python", "def convert_length"))
    (folder / "my_tools.yaml").write_text(block("yaml", "convert_length"))
    scope: dict[str, Any] = {}
    exec(block("python", "def test_my_tool"), scope)
    await scope["test_my_tool"]()


async def test_the_class(folder: Path) -> None:
    (folder / "my_tools.py").write_text(block("python", "class Notebook"))
    (folder / "my_tools.yaml").write_text(block("yaml", "my_tools.py:Notebook"))
    (spec,) = load_tools("my_tools.yaml")
    await check_tool(spec, {"text": "hello"})


@pytest.fixture
async def weather() -> AsyncIterator[str]:
    async def forecast(request: web.Request) -> web.Response:
        return web.json_response({"text": f"Rain in {(await request.json())['city']}."})

    app = web.Application()
    app.router.add_post("/forecast", forecast)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
    await runner.cleanup()


async def test_the_service(folder: Path, weather: str) -> None:
    (folder / "my_weather.py").write_text(block("python", "class Weather"))
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    schema = {"type": "function", "function": {"name": "weather", "description": "Ask.", "parameters": parameters}}
    entry = {"class_name": "my_weather.py:Weather", "config": {"url": weather}, "tool_schema": schema}
    (folder / "tools.yaml").write_text(yaml.safe_dump({"tools": [entry]}))
    (spec,) = load_tools("tools.yaml")
    await check_tool(spec, {"city": "Oslo"})


def test_the_limits(folder: Path) -> None:
    (folder / "tools.yaml").write_text(block("yaml", "rate_limit_per_s"))
    (spec,) = load_tools("tools.yaml")
    assert spec.timeout_s == 20.0
    assert CallLimits.of(spec.name, spec.config) == CallLimits(64, 100.0)


def test_the_mcp_entry(folder: Path) -> None:
    (folder / "tools.yaml").write_text(block("yaml", "type: mcp"))
    (servers,) = re.findall(r"`(\{\"mcpServers\".*?\}\}\})`", PAGE, re.DOTALL)
    (folder / "my_servers.json").write_text(servers)
    asked: dict[str, Any] = {}

    def discover(cls: Any, given: Any, config: Any) -> Any:  # the example's server needs a program that may be absent
        asked.update(given)
        own = {**config, "server": given["fetch"], "server_name": "fetch", "tool": "fetch"}
        return [(own, {"type": "function", "function": {"name": "fetch", "description": "Fetch.", "parameters": {}}})]

    (spec,) = load_tools("tools.yaml", discover=discover)
    assert spec.name == "fetch"
    assert asked["fetch"]["command"] == "uvx"
