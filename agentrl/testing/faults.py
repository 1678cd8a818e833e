"""Deliberate faults: an HTTP service that misbehaves, and a tool that sometimes fails.

For a tool that talks to a service::

    with FaultServer({"/retrieve": lambda body: {"result": [[]]}}) as server:
        tool = MyTool({"url": server.url})
        server.faults.extend(["503", "drop", "ok"])      # what happens to the next requests
        ...
        server.kill()                                    # stops listening, as if killed
        server.restart()                                 # on the same port

For a whole run, in the tool YAML: `FaultyTool` around any tool (see docs/testing_plugins.md).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Self, TypeVar

from aiohttp import web

from agentrl.errors import ToolServiceError, suggest
from agentrl.interfaces import BaseTool
from agentrl.plugins import resolve
from agentrl.plugins.adapt import as_tool, schema_of, takes_context
from agentrl.types import JsonDict, ToolResponse

T = TypeVar("T")
Route = Callable[[Any], Any]
"""Request body (parsed JSON, or None) in, JSON answer out."""
SERVER_FAULTS = ("ok", "latency:SECONDS", "malformed", "empty", "cut", "drop", "hang", "an HTTP status such as 503")
_TIMEOUT_S = 10.0


class FaultServer:
    """A real HTTP server in its own thread, whose answers fail on command.

    Args:
        routes: answers by path; both GET and POST. Other paths are 404.

    Attributes:
        faults: what happens to the next requests, one entry each: `ok`, `latency:0.5` (answers late), `503` (any HTTP
            status of 400 or more, with `Retry-After: 0`), `malformed` (200 with half of the JSON), `empty` (200 without
            a body), `cut` (the connection breaks in the middle of the answer), `drop` (it breaks before the answer),
            `hang` (no answer). Without entries every request is answered.
        requests: path and body of every request so far.
        always: the fault of every request that finds `faults` empty.
    """

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self.faults: deque[str] = deque()
        self.always = "ok"
        self.requests: list[tuple[str, Any]] = []
        self._routes = dict(routes)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-server", daemon=True)
        self._thread.start()
        self._runner: web.AppRunner | None = None
        self._port = 0
        self.restart()

    @property
    def url(self) -> str:
        """`http://127.0.0.1:port`; stays the same after `restart`."""
        return f"http://127.0.0.1:{self._port}"

    def kill(self) -> None:
        """Stop listening and break every connection, as a killed process does."""
        self._run(self._stop())

    def restart(self) -> None:
        """Listen again on the same port."""
        self._run(self._start())

    def close(self) -> None:
        """End the server and its thread. May be called twice."""
        if self._loop.is_closed():
            return
        self.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_TIMEOUT_S)
        self._loop.close()

    def __enter__(self) -> Self:
        """The running server."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_TIMEOUT_S)

    async def _start(self) -> None:
        if self._runner is not None:
            return
        app = web.Application(client_max_size=2**28)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0, handler_cancellation=True)
        await self._runner.setup()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        await web.SockSite(self._runner, listener).start()

    async def _stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw) if raw else None
        self.requests.append((request.path, body))
        fault, _, detail = (self.faults.popleft() if self.faults else self.always).partition(":")
        if fault.isdigit():
            return web.json_response({"error": "as told"}, status=int(fault), headers={"Retry-After": "0"})
        if fault == "latency":
            await asyncio.sleep(float(detail))
        elif fault == "hang":
            await asyncio.sleep(3600)
        elif fault == "drop":
            _break(request)
            return web.Response()
        elif fault == "empty":
            return web.Response()
        elif fault not in ("ok", "malformed", "cut"):
            raise ValueError(f"unknown fault '{fault}'. Known: {', '.join(SERVER_FAULTS)}")
        route = self._routes.get(request.path)
        if route is None:
            return web.json_response({"error": f"no {request.path}"}, status=404)
        answer = json.dumps(route(body)).encode()
        if fault == "malformed":
            return web.Response(body=answer[: len(answer) // 2], content_type="application/json")
        if fault == "cut":
            response = web.StreamResponse(headers={"Content-Length": str(len(answer))})
            await response.prepare(request)
            await response.write(answer[: len(answer) // 2])
            _break(request)
            return response
        return web.Response(body=answer, content_type="application/json")


def _break(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


TOOL_FAULTS = ("error", "bug", "hang", "slow", "mistake")


def _inner(config: JsonDict) -> tuple[Any, JsonDict]:
    """Class or function of the inner tool, and its configuration."""
    tool = config["tool"]
    return resolve("tools", tool["class_name"]), tool.get("config") or {}


class FaultyTool(BaseTool):
    """Another tool, some of whose calls fail.

    Args:
        config: `tool` (a tool as in the YAML: `{class_name, config, tool_schema}`), `faults` (share of calls by kind:
            `error` the service fails, `bug` an exception, `hang` no answer, `slow` answers after `slow_s`, `mistake` an
            error for the model), `seed`. Which calls fail depends on the seed, the row's `execute_kwargs.fault_key` (or
            the instance) and the number of the call, so a repeated run fails in the same places.
        tool_schema: None: the inner tool's.
    """

    _instances = itertools.count()

    def __init__(self, config: JsonDict, tool_schema: JsonDict | None = None) -> None:
        schema = tool_schema or self.schema_from_config(config)
        super().__init__(config, schema)
        plugin, inner_config = _inner(config)
        self._inner = as_tool(plugin, inner_config, schema)
        self._takes_context = takes_context(plugin, schema)
        self._shares: dict[str, float] = config.get("faults") or {}
        for name in self._shares:
            if name not in TOOL_FAULTS:
                raise ValueError(f"config.faults: unknown fault '{name}'.{suggest(name, TOOL_FAULTS)}")
        self._key: Any = next(self._instances)
        self._calls = 0

    @classmethod
    def schema_from_config(cls, config: JsonDict) -> JsonDict:
        """The inner tool's."""
        own: JsonDict | None = config["tool"].get("tool_schema")
        return own or schema_of(*_inner(config))

    async def create(self, **create_kwargs: Any) -> None:
        """Create the inner tool."""
        self._inner.scope = self.scope
        await self._inner.create(**create_kwargs)

    async def execute(
        self, arguments: JsonDict, *, context: Any = None, fault_key: Any = None, **execute_kwargs: Any
    ) -> ToolResponse:
        """Fail, or run the call."""
        if self._takes_context:
            execute_kwargs["context"] = context
        self._calls += 1
        fault = self._draw(self._key if fault_key is None else fault_key)
        if fault == "error":
            raise ToolServiceError(f"tool '{self.name}': a deliberate fault")
        if fault == "bug":
            raise RuntimeError("a deliberate bug")
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "slow":
            await asyncio.sleep(float(self.config.get("slow_s", 1.0)))
        if fault == "mistake":
            return ToolResponse(text="a deliberate mistake", is_error=True)
        return await self._inner.execute(arguments, **execute_kwargs)

    async def calc_reward(self, **kwargs: Any) -> float:
        """The inner tool's."""
        return await self._inner.calc_reward(**kwargs)

    async def release(self, **kwargs: Any) -> None:
        """Release the inner tool."""
        await self._inner.release(**kwargs)

    def _draw(self, key: Any) -> str | None:
        # Shares {error: 0.1, slow: 0.2}: a number below 0.1 is an error, one below 0.3 is slow, the rest works.
        place = random.Random(f"{self.config.get('seed', 0)}/{key}/{self._calls}").random()
        for name, share in self._shares.items():
            place -= share
            if place < 0:
                return name
        return None
