"""Tools of MCP servers, over stdio or streamable HTTP: schemas from the server, one connection per worker."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from agentrl.errors import PluginError, ToolServiceError, suggest
from agentrl.interfaces import TOOL_CONFIG, BaseTool, WorkerScope, check_config, trace_headers
from agentrl.types import JsonDict, ToolResponse

if TYPE_CHECKING:
    import httpx2
    from mcp import Client
    from mcp.types import CallToolResult, RequestParamsMeta, Tool

_CONFIG = (*TOOL_CONFIG, "start_timeout_s", "server", "server_name", "tool")
_STDIO_KEYS = ("command", "args", "env", "cwd")
_HTTP_KEYS = ("url", "headers", "auth_token")
_TRANSPORTS = {"stdio": _STDIO_KEYS, "http": _HTTP_KEYS, "streamable-http": _HTTP_KEYS, "streamable_http": _HTTP_KEYS}
_INVALID_PARAMS = -32602
_START_TIMEOUT_S = 30.0
_SHOWN = 500


class Mcp(BaseTool):
    """One tool of an MCP server. All trajectories of a worker share the server's connection (or process).

    A call continues its trajectory's trace: `traceparent` is in the request's `_meta` and, over HTTP, in its header.

    A call fails if the server died or answered nobody within the call's deadline; the next call then starts the server
    again.

    Args:
        config: from `discover`: `server` (an entry of `mcpServers`), `server_name`, `tool`, `start_timeout_s`.
        tool_schema: from the server.
    """

    def __init__(self, config: JsonDict, tool_schema: JsonDict | None = None) -> None:
        super().__init__(config, tool_schema)
        check_config(config, _CONFIG)
        self._server: JsonDict = config["server"]
        self._server_name = str(config["server_name"])
        self._tool = str(config["tool"])
        self._start_timeout_s = float(config.get("start_timeout_s", _START_TIMEOUT_S))
        self._own_scope: WorkerScope | None = None

    @classmethod
    def discover(cls, servers: Mapping[str, JsonDict], config: JsonDict) -> list[tuple[JsonDict, JsonDict]]:
        """Start each server, ask for its tools and stop it again.

        Args:
            servers: `mcpServers` of the servers file.
            config: of the tool YAML's entry.

        Returns:
            `config` and schema of each tool, in the servers' order.

        Raises:
            PluginError: a server cannot be used; the message names it.
        """
        for name, server in servers.items():
            _check_server(name, server)
        timeout_s = float(config.get("start_timeout_s", _START_TIMEOUT_S))
        found: list[tuple[JsonDict, JsonDict]] = []
        for name, server in servers.items():
            for tool in _in_own_loop(_list_tools, name, server, timeout_s):
                own = {**config, "server": server, "server_name": name, "tool": tool.name}
                found.append((own, _schema(tool)))
        return found

    async def execute(self, arguments: JsonDict, **execute_kwargs: Any) -> ToolResponse:
        """Call the tool. An error that the tool reports goes to the model.

        Raises:
            ToolServiceError: the server cannot be started, died, or failed.
        """
        from mcp import MCPError

        scope = self.scope
        if scope is None:
            scope = self._own_scope = self._own_scope or WorkerScope()
        link = await self._connect(scope)
        began = asyncio.get_running_loop().time()
        try:
            trace = cast("RequestParamsMeta", trace_headers()) or None
            result = await link.client.call_tool(self._tool, arguments, meta=trace)
        except MCPError as error:
            if error.error.code == _INVALID_PARAMS:
                return ToolResponse(text=f"{self._tool} was not run: {error}", is_error=True)
            link.broken = True
            raise ToolServiceError(f"MCP server '{self._server_name}': {self._tool} failed: {error}") from error
        except asyncio.CancelledError:
            # The call's deadline passed. If the server answered other calls meanwhile, only this call is slow; if it
            # answered none since this one began, the server hangs and is started again.
            link.broken = link.broken or link.last_answer < began
            raise
        link.last_answer = asyncio.get_running_loop().time()
        return ToolResponse(text=_text(result), is_error=bool(result.is_error))

    async def release(self, **kwargs: Any) -> None:
        """Close the tool's own connection; shared ones stay open."""
        if self._own_scope is not None:
            await self._own_scope.close()
            self._own_scope = None

    async def _connect(self, scope: WorkerScope) -> _Link:
        key = "mcp", self._server_name, json.dumps(self._server, sort_keys=True)
        open_link = scope.peek(key)
        if isinstance(open_link, _Link) and open_link.broken:
            await scope.drop(key)
        return await scope.get(key, lambda: _open(self._server_name, self._server, self._start_timeout_s))


class _Link:
    """An open connection."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.broken = False
        self.last_answer = 0.0


@asynccontextmanager
async def _open(name: str, server: JsonDict, timeout_s: float, errors: TextIO | None = None) -> AsyncIterator[_Link]:
    """Start a server or connect to it.

    Raises:
        ToolServiceError: the server cannot be reached, or not in time.
    """
    from mcp import Client, MCPError

    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(timeout_s):
                transport = await _transport(server, stack, errors)
                link = _Link(await stack.enter_async_context(Client(transport)))
        except TimeoutError as error:
            raise ToolServiceError(f"MCP server '{name}' did not start within {timeout_s:g} s") from error
        except (OSError, MCPError, ExceptionGroup) as error:
            raise ToolServiceError(f"MCP server '{name}' cannot be reached: {_reason(error)}") from error
        yield link


async def _transport(server: JsonDict, stack: AsyncExitStack, errors: TextIO | None) -> Any:
    import sys

    from mcp.client.stdio import StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    if "command" in server:
        known = {key: server[key] for key in _STDIO_KEYS if server.get(key) is not None}
        return stdio_client(StdioServerParameters(**known), errlog=errors or sys.stderr)
    headers = {str(key): str(value) for key, value in (server.get("headers") or {}).items()}
    if server.get("auth_token"):
        headers.setdefault("Authorization", f"Bearer {server['auth_token']}")
    client = await stack.enter_async_context(create_mcp_http_client(headers=headers))
    client.event_hooks["request"].append(_continue_trace)
    return streamable_http_client(server["url"], http_client=client)


async def _continue_trace(request: httpx2.Request) -> None:
    """Send the trace of the call that a request is for: the SDK sends each message in its caller's context.

    Other requests than POST are the connection's own; they would name whichever call had opened it.
    """
    if request.method == "POST":
        request.headers.update(trace_headers())


async def _list_tools(name: str, server: JsonDict, timeout_s: float) -> list[Tool]:
    """The tools of a server, from all pages of its list."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        tools: list[Tool] = []
        try:
            async with _open(name, server, timeout_s, errors) as link, asyncio.timeout(timeout_s):
                cursor: str | None = None
                while True:
                    page = await link.client.list_tools(cursor=cursor)
                    tools += page.tools
                    cursor = page.next_cursor
                    if not cursor:
                        return tools
        except (ToolServiceError, TimeoutError) as error:
            errors.seek(0)
            said = errors.read().strip()[-_SHOWN:]
            raise PluginError(f"{error}{f'; its error output ends with: {said}' if said else ''}") from error


def _in_own_loop(function: Any, *arguments: Any) -> Any:
    """Run a coroutine function in a thread of its own, so that it works with and without a running event loop."""
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["result"] = asyncio.run(function(*arguments))
        except BaseException as error:  # raised again by the caller
            outcome["error"] = error

    thread = threading.Thread(target=run, name="agentrl-mcp-discovery")
    thread.start()
    thread.join()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


def _check_server(name: str, server: Any) -> None:
    if not isinstance(server, dict) or not ("command" in server) != ("url" in server):
        raise PluginError(f"MCP server '{name}': got {server!r:.{_SHOWN}}, wanted `command` (stdio) or `url` (HTTP)")
    default = "stdio" if "command" in server else "http"
    transport = server.get("type", server.get("transport", default))
    if transport not in _TRANSPORTS:
        raise PluginError(
            f"MCP server '{name}': unknown transport '{transport}'.{suggest(str(transport), _TRANSPORTS)}"
        )
    known = (*_TRANSPORTS[transport], "type", "transport")
    for key in server:
        if key not in known:
            raise PluginError(f"MCP server '{name}': unknown key '{key}'.{suggest(str(key), known)}")


def _schema(tool: Tool) -> JsonDict:
    function = {"name": tool.name, "description": tool.description or tool.title or tool.name}
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}


def _text(result: CallToolResult) -> str:
    """The text of an answer; parts that a text model cannot read are named by their type, such as `[image]`."""
    parts = []
    for block in result.content:
        text = getattr(block, "text", None) or getattr(getattr(block, "resource", None), "text", None)
        parts.append(text if text is not None else f"[{block.type}]")
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
