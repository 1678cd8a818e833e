"""An engine without a model: answers `/generate` immediately from a function, and fails on command.

For tests of faults and routing around an engine, and for benchmarks of everything except the engine. It speaks the part
of SGLang's API that the client uses, and the same part of vLLM's; the script sees requests of both in SGLang's words.

Run on its own, it plays the same script for every trajectory::

    python -m agentrl.testing.scripted_engine --port 30000 --script script.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from agentrl.testing.scripted_updates import ScriptedUpdates
from agentrl.testing.scripted_vllm import vllm_routes

Respond = Callable[[dict[str, Any]], tuple[list[int], str]]
"""Request body in, sampled ids and finish reason out."""


class ScriptedEngine:
    """Serves in the running event loop.

    Args:
        respond: returns the answer to a request.
        weight_version: the version that the engine reports.
        keep_requests: remember the request bodies in `requests`.
        latency_s: seconds until a request is answered; None: none.
    """

    def __init__(
        self,
        respond: Respond,
        weight_version: str = "0",
        *,
        keep_requests: bool = True,
        latency_s: Callable[[dict[str, Any]], float] | None = None,
    ) -> None:
        self.respond = respond
        self._keep_requests = keep_requests
        self._latency_s = latency_s
        self.weight_version = weight_version
        self.requests: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.weight_updates: list[str] = []
        self.adapters: dict[str, str] = {}
        """LoRA adapters that are loaded: folders by name."""
        self.adapter_calls: list[dict[str, Any]] = []
        self.faults: deque[str] = deque()
        """What happens to the next generations: `ok`, `drop`, `hang`, `cut`, or an HTTP status such as `500`."""
        self.update_faults: dict[str, str] = {}
        """What happens to every request of a weight update with this path: see `scripted_updates`."""
        self.updates = ScriptedUpdates(self)
        self.dead = False
        """Every connection breaks."""
        self.paused = False
        self.healthy = True
        self.released: set[str] = set()
        """What of its memory is released."""
        self.calls: list[str] = []
        """Pauses, releases and resumes, and updates between them, in order."""
        self.ignores_updates = False
        self.silent: set[str] = set()
        """Paths that get no answer."""
        self.answer_overrides: dict[str, Any] = {}
        """Replaces fields of `meta_info`."""
        self._runner: web.AppRunner | None = None
        self._listener: socket.socket | None = None
        self._port = 0

    @property
    def address(self) -> str:
        """Where it listens; the same after a restart."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self, port: int | None = None) -> str:
        """Start serving and return the address."""
        app = web.Application(client_max_size=2**30, middlewares=[self._keep_silent, self._break_if_dead])
        guarded = self.updates.guarded
        app.add_routes(
            [
                web.post("/generate", self._generate),
                web.get("/health", self._health),
                web.get("/model_info", guarded(self._model_info)),
                web.post("/abort_request", self._abort),
                web.post("/update_weights_from_disk", guarded(self._update)),
                web.post("/update_weight_version", guarded(self._name_version)),
                web.post("/load_lora_adapter", self._load_adapter),
                web.post("/unload_lora_adapter", self._unload_adapter),
                web.post("/flush_cache", guarded(self._accept)),
                web.post("/pause_generation", guarded(self._pause)),
                web.post("/continue_generation", guarded(self._resume)),
                *(web.post(f"/{call}_memory_occupation", self._occupy) for call in ("release", "resume")),
                *self.updates.routes(),
                *vllm_routes(self),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0, handler_cancellation=True)
        await self._runner.setup()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port if port is None else port))
        self._port = listener.getsockname()[1]
        self._listener = listener
        await web.SockSite(self._runner, listener, backlog=2048).start()  # as uvicorn, SGLang's server
        return self.address

    async def stop(self) -> None:
        """Close the port and every connection, as a killed process would."""
        if self._runner is None or self._listener is None:
            return
        # A connection accepted a moment ago has no transport yet; asyncio would leak its socket if the server ended.
        asyncio.get_running_loop().remove_reader(self._listener)
        for _ in range(2):
            await asyncio.sleep(0)
        await self._runner.cleanup()
        self._runner = self._listener = None

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        return await self.generate(request, orjson.loads(await request.read()), lambda answer: answer)

    async def generate(
        self, request: web.Request, payload: dict[str, Any], shape: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> web.StreamResponse:
        """Answer a request in SGLang's words, or fail as told.

        Args:
            request: where the answer goes.
            payload: the body.
            shape: from an answer of SGLang to what is sent.
        """
        if self._keep_requests:
            self.requests.append(payload)
        if payload.get("lora_path") and payload["lora_path"] not in self.adapters:
            return web.json_response({"error": {"message": "the LoRA adapter is not loaded"}}, status=400)
        fault = self.faults.popleft() if self.faults else "ok"
        if fault.isdigit():
            return web.json_response({"error": {"message": "as told"}}, status=int(fault))
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "drop" and request.transport is not None:
            request.transport.abort()
        if self._latency_s is not None:
            await asyncio.sleep(self._latency_s(payload))
        body = orjson.dumps(shape(self._answer(payload)))
        if fault == "cut":
            response = web.StreamResponse(headers={"Content-Length": str(len(body))})
            await response.prepare(request)
            await response.write(body[: len(body) // 2])
            if request.transport is not None:
                request.transport.abort()
            return response
        return web.Response(body=body, content_type="application/json")

    def _answer(self, payload: dict[str, Any]) -> dict[str, Any]:
        ids, finish = self.respond(payload)
        meta = {
            "id": payload.get("rid"),
            "finish_reason": {"type": finish},
            "prompt_tokens": len(payload["input_ids"]),
            "completion_tokens": len(ids),
            "weight_version": self.weight_version,
            "output_token_logprobs": [[-0.5, token, None] for token in ids],
            "e2e_latency": 0.001,
        }
        return {"text": "", "output_ids": ids, "meta_info": {**meta, **self.answer_overrides}}

    @web.middleware
    async def _keep_silent(self, request: web.Request, handler: Any) -> web.StreamResponse:
        while request.path in self.silent:
            await asyncio.sleep(0.02)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": "scripted", "weight_version": self.weight_version})

    async def _abort(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        self.aborted.append("all" if body.get("abort_all") else body["rid"])
        return web.Response()

    async def _update(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        if body["model_path"] == "missing":
            return web.json_response({"success": False, "message": "no such folder"}, status=400)
        self.weight_updates.append(body["model_path"])
        self.calls.append(f"update {body['weight_version']}")
        self.set_version(body["weight_version"])
        return web.json_response({"success": True, "message": "", "num_paused_requests": 0})

    async def _name_version(self, request: web.Request) -> web.Response:
        self.weight_version = orjson.loads(await request.read())["new_version"]
        return web.json_response({"success": True, "message": "", "new_version": self.weight_version})

    async def _load_adapter(self, request: web.Request) -> web.Response:
        """As SGLang: a name that is loaded is not loaded again."""
        body = orjson.loads(await request.read())
        self.adapter_calls.append({"path": request.path, **body})
        if body["lora_name"] in self.adapters:
            return self._adapter_answer(f"LoRA adapter {body['lora_name']} is already loaded")
        self.adapters[body["lora_name"]] = body["lora_path"]
        return self._adapter_answer("")

    async def _unload_adapter(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        self.adapter_calls.append({"path": request.path, **body})
        known = self.adapters.pop(body["lora_name"], None)
        return self._adapter_answer("" if known else f"LoRA adapter {body['lora_name']} does not exist")

    def _adapter_answer(self, problem: str) -> web.Response:
        body = {"success": not problem, "error_message": problem, "loaded_adapters": self.adapters}
        return web.json_response(body, status=400 if problem else 200)

    def set_version(self, version: str) -> None:
        """Report this version from now on, unless updates are to be ignored."""
        if not self.ignores_updates:
            self.weight_version = version

    async def _occupy(self, request: web.Request) -> web.Response:
        """As SGLang, which ends when it is to resume what it has not released; here it answers 500."""
        tags, call = set(orjson.loads(await request.read())["tags"]), request.path.strip("/").partition("_")[0]
        self.calls.append(f"{call} {' '.join(sorted(tags))}")
        if tags & self.released if call == "release" else tags - self.released:
            return web.json_response({"error": {"message": f"cannot {call} {sorted(tags)}"}}, status=500)
        self.released ^= tags
        return web.Response()

    async def _accept(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _pause(self, request: web.Request) -> web.Response:
        self.calls.append("pause")
        self.paused = True
        return web.Response()

    async def _resume(self, request: web.Request) -> web.Response:
        self.calls.append("continue")
        self.paused = False
        return web.Response()

    def die(self, request: web.Request) -> web.Response:
        """From now on every connection breaks, this one first."""
        self.dead = True
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    @web.middleware
    async def _break_if_dead(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.dead:
            return self.die(request)
        answer: web.StreamResponse = await handler(request)
        return answer


def play(script: list[list[int]]) -> Respond:
    """Answer the k-th request of a trajectory with `script[k]`, cut to the request's budget.

    Requests belong to a trajectory by their id, `{trajectory}-{turn}` as the rollout worker names them.

    Args:
        script: the ids of each turn; after the last one it starts over.
    """

    def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
        turn = int(payload["rid"].rpartition("-")[2].partition(".")[0])
        ids = script[turn % len(script)]
        budget = payload["sampling_params"]["max_new_tokens"]
        return (ids, "stop") if len(ids) <= budget else (ids[:budget], "length")

    return respond


async def _serve(port: int, script: list[list[int]]) -> None:
    await ScriptedEngine(play(script), keep_requests=False).start(port)
    await asyncio.Event().wait()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--script", type=Path, required=True, help="JSON list with the list of ids of each turn")
    options = parser.parse_args()
    asyncio.run(_serve(options.port, json.loads(options.script.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
