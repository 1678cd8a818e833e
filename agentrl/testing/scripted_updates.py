"""The weight updates of a scripted engine: SGLang's requests, over a real gloo group, with faults by path.

::

    engine.update_faults["/update_weights_from_distributed"] = "hang"     no answer, and nothing is received
                                                             = "refuse"   400
                                                             = "unknown"  404
                                                             = "die"      the connection breaks, the engine is gone
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import orjson
import torch
from aiohttp import web

from agentrl.inference.weights.buckets import from_fields, total_bytes, unflatten
from agentrl.inference.weights.group import UpdateGroup, join_store
from agentrl.inference.weights.shared_memory import read_shared
from agentrl.plugins.threads import call_in_thread


class Updated(Protocol):
    """The engine that takes the updates."""

    update_faults: dict[str, str]

    def die(self, request: web.Request) -> web.Response:
        """Break every connection from now on."""

    def set_version(self, version: str) -> None:
        """Report this version."""


_TIMEOUT_S = 60.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ScriptedUpdates:
    """What a scripted engine has received.

    Attributes:
        weights: by name, what the last updates brought.
        is_open: between begin and end.
        calls: the paths of all requests of updates, faulty ones included.
    """

    def __init__(self, engine: Updated) -> None:
        self._engine = engine
        self.weights: dict[str, torch.Tensor] = {}
        self.is_open = False
        self.calls: list[str] = []
        self._groups: dict[str, UpdateGroup] = {}

    def routes(self) -> list[web.RouteDef]:
        """All requests of updates but those that load folders."""
        table = {
            "/begin_weight_update": self._begin,
            "/end_weight_update": self._end,
            "/init_weights_update_group": self._init,
            "/destroy_weights_update_group": self._destroy,
            "/update_weights_from_distributed": self._receive,
            "/update_weights_from_tensor": self._load,
        }
        return [web.post(path, self.guarded(handler)) for path, handler in table.items()]

    def guarded(self, handler: Handler) -> Handler:
        """A handler behind the fault of its path."""

        async def handle(request: web.Request) -> web.StreamResponse:
            self.calls.append(request.path)
            fault = self._engine.update_faults.get(request.path)
            if fault == "refuse":
                return _answer("as told", good=False)
            if fault == "unknown":
                return web.json_response({"detail": "Not Found"}, status=404)
            if fault == "hang":
                await asyncio.sleep(3600)
            if fault == "die":
                self.leave()
                return self._engine.die(request)
            return await handler(request)

        return handle

    def leave(self) -> None:
        """Leave all groups, as a process that ends does."""
        for group in self._groups.values():
            group.leave()
        self._groups.clear()

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        self.is_open, was_open = True, self.is_open
        return _answer("a session is already open" if was_open else "", good=not was_open)

    async def _end(self, request: web.Request) -> web.StreamResponse:
        self.is_open, was_open = False, self.is_open
        return _answer("" if was_open else "no session is open", good=was_open)

    async def _init(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())

        def join() -> UpdateGroup:
            return UpdateGroup(
                join_store(body["master_address"], body["master_port"], _TIMEOUT_S),
                body["group_name"],
                rank=body["rank_offset"],
                world_size=body["world_size"],
                backend=body["backend"],
                timeout_s=_TIMEOUT_S,
            )

        try:
            self._groups[body["group_name"]] = await call_in_thread(join)
        except RuntimeError as error:
            return _answer(str(error), good=False)
        return _answer("")

    async def _destroy(self, request: web.Request) -> web.StreamResponse:
        group = self._groups.pop(orjson.loads(await request.read())["group_name"], None)
        if group is not None:
            group.leave()
        return _answer("" if group else "no such group", good=group is not None)

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        group = self._groups.get(body["group_name"])
        if group is None or not self.is_open:
            return _answer("no such group, or no open session", good=False)
        specs = from_fields(body["names"], body["dtypes"], body["shapes"])
        flat = torch.empty(total_bytes(specs), dtype=torch.uint8)
        try:
            await call_in_thread(lambda: group.broadcast(flat, _TIMEOUT_S))
        except RuntimeError as error:
            return _answer(f"Failed to receive weights: {error}", good=False)
        return self._take(body, dict(unflatten(flat, specs)))

    async def _load(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        if not self.is_open:
            return _answer("no open session", good=False)
        specs = from_fields(body["names"], body["dtypes"], body["shapes"])
        flat = read_shared(body["shared_memory"], total_bytes(specs)).clone()
        return self._take(body, dict(unflatten(flat, specs)))

    def _take(self, body: dict[str, Any], tensors: dict[str, torch.Tensor]) -> web.StreamResponse:
        self.weights |= tensors
        if body.get("weight_version"):
            self._engine.set_version(body["weight_version"])
        return _answer("")


def _answer(message: str, *, good: bool = True) -> web.Response:
    return web.json_response({"success": good, "message": message}, status=200 if good else 400)
