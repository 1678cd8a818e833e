"""The part of vLLM's API that its client uses, for `ScriptedEngine`: shapes as vLLM 0.32 answered on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import orjson
from aiohttp import web

_FIELDS = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}


class _Engine(Protocol):
    """What the routes use of `ScriptedEngine`."""

    healthy: bool
    weight_version: str
    aborted: list[str]
    weight_updates: list[str]

    async def generate(
        self, request: web.Request, payload: dict[str, Any], shape: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> web.StreamResponse: ...

    def set_version(self, version: str) -> None: ...


def vllm_routes(engine: _Engine) -> list[web.RouteDef]:
    """The routes of a vLLM server with development endpoints, over a scripted engine."""
    paused: set[str] = set()
    posts = {
        "/inference/v1/generate": _generate,
        "/abort_requests": _abort,
        "/collective_rpc": _collective_rpc,
        "/update_weight_version": _update_version,
        "/reset_prefix_cache": _reset,
    }

    async def pause(request: web.Request) -> web.Response:
        paused.add(request.query["mode"])
        return web.json_response({"status": "paused"})

    async def resume(_: web.Request) -> web.Response:
        paused.clear()
        return web.json_response({"status": "resumed"})

    async def is_paused(_: web.Request) -> web.Response:
        return web.json_response({"is_paused": bool(paused)})

    async def weight_info(_: web.Request) -> web.Response:
        if not engine.healthy:
            return web.Response(status=503)
        return web.json_response({"weight_version": engine.weight_version})

    return [
        *(web.post(path, partial(handler, engine)) for path, handler in posts.items()),
        *(web.post("/pause", pause), web.post("/resume", resume)),
        *(web.get("/is_paused", is_paused), web.get("/weight_info", weight_info)),
    ]


async def _body(request: web.Request) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(await request.read())
    return body


async def _generate(engine: _Engine, request: web.Request) -> web.StreamResponse:
    body = await _body(request)
    params = {_FIELDS.get(name, name): value for name, value in body["sampling_params"].items() if name != "logprobs"}
    payload = {"rid": body["request_id"], "input_ids": body["token_ids"], "sampling_params": params}
    return await engine.generate(request, payload, _answer)


def _answer(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer of SGLang as vLLM gives it."""
    meta = answer["meta_info"]
    ids, pairs = answer["output_ids"], meta["output_token_logprobs"]
    finish, prompt = meta["finish_reason"], meta["prompt_tokens"]
    entries = [
        {
            "token_id": token,
            "logprob": log_prob,
            "rank": 1,
            "top_logprobs": [{"token_id": token, "logprob": log_prob, "rank": 1}],
        }
        for log_prob, token, _ in pairs
    ]
    choice = {
        "index": 0,
        "finish_reason": finish["type"] if finish else None,
        "stop_reason": (finish or {}).get("matched"),
        "token_ids": ids,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": [{"version": meta["weight_version"], "start": 0, "end": len(ids)}] if ids else [],
        "logprobs": {"content": entries},
    }
    usage = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + len(ids),
        "completion_tokens": len(ids),
        "prompt_tokens_details": {
            "cached_tokens": meta.get("cached_tokens", 0),
            "created_cache_tokens": None,
            "multimodal_tokens": None,
        },
    }
    return {
        "request_id": f"generate-tokens-{meta['id']}",
        "model": "scripted",
        "usage": usage,
        "prompt_logprobs": None,
        "output_mode": "tokens",
        "choices": [choice],
    }


async def _abort(engine: _Engine, request: web.Request) -> web.Response:
    ids = (await _body(request))["request_ids"]
    engine.aborted += [each.removeprefix("generate-tokens-") for each in ids] or ["all"]
    return web.json_response({"status": "aborted", "aborted": len(ids)})


async def _collective_rpc(engine: _Engine, request: web.Request) -> web.Response:
    body = await _body(request)
    if body["method"] != "reload_weights":
        return web.json_response({"error": {"message": f"no method {body['method']}"}}, status=500)
    engine.weight_updates.append(body["kwargs"]["weights_path"])
    return web.json_response({"results": [None]})


async def _update_version(engine: _Engine, request: web.Request) -> web.Response:
    version = (await _body(request))["new_version"]
    engine.set_version(version)
    return web.json_response({"success": True, "new_version": version})


async def _reset(engine: _Engine, request: web.Request) -> web.Response:
    return web.json_response({"success": True})
