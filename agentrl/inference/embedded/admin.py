"""Routes that inspect or control the engine: health, information, pause, abort, flush, weights, metrics."""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import asdict
from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from agentrl import __version__
from agentrl.errors import UserInputError, suggest
from agentrl.inference.embedded.adapters import adapter_routes
from agentrl.inference.embedded.engine import PAUSE_MODES
from agentrl.inference.embedded.frontend import Frontend
from agentrl.inference.embedded.health import Health
from agentrl.inference.embedded.http import Handler, answer, read_object
from agentrl.inference.embedded.memory_api import memory_routes
from agentrl.inference.embedded.metrics import metrics_page
from agentrl.inference.embedded.weight_updates import WeightUpdates
from agentrl.types import JsonDict

NOT_FLUSHED = (
    "Weights were updated, but the cache was not flushed because requests are still running or queued. Retract or "
    "finish them, then call /flush_cache."
)


def admin_routes(frontend: Frontend) -> dict[tuple[str, str], Handler]:
    """Handlers by method and path."""
    admin = Admin(frontend)
    table: dict[tuple[str, str], Handler] = {
        ("GET", "/model_info"): admin.model_info,
        ("GET", "/get_model_info"): admin.model_info,
        ("GET", "/server_info"): admin.server_info,
        ("GET", "/get_server_info"): admin.server_info,
        ("GET", "/metrics"): admin.metrics,
        ("POST", "/flush_cache"): admin.flush_cache,
        ("GET", "/flush_cache"): admin.flush_cache,
        ("POST", "/abort_request"): admin.abort_request,
        ("POST", "/pause_generation"): admin.pause,
        ("POST", "/continue_generation"): admin.resume,
        ("POST", "/update_weights_from_disk"): admin.update_from_disk,
    }
    updates = WeightUpdates(frontend.engine.scheduler.model.device, admin.update, {})
    table |= updates.routes(admin.update_from_tensor) | memory_routes(frontend.engine)
    table |= Health(frontend).routes()
    return table | adapter_routes(frontend)


class Admin:
    """The handlers; one object so that they share the engine."""

    def __init__(self, frontend: Frontend) -> None:
        self.frontend, self.engine = frontend, frontend.engine

    async def model_info(self, _: HTTPRequest) -> Response:
        """The model and the weight version that is served."""
        spec, options = self.engine.spec, self.engine.options
        return answer(
            {
                "model_path": options.model,
                "tokenizer_path": options.tokenizer_path or options.model,
                "is_generation": True,
                "weight_version": self.engine.weight_version,
                "model_type": spec.family,
                "architectures": spec.raw.get("architectures"),
            }
        )

    async def server_info(self, _: HTTPRequest) -> Response:
        """Options and load, once the engine's thread has answered."""
        await asyncio.wrap_future(self.engine.call(lambda: None))
        scheduler = self.engine.scheduler
        state: JsonDict = {
            "num_running_reqs": len(scheduler.running),
            "num_waiting_reqs": len(scheduler.waiting),
            "paused": self.engine.paused,
            "released": sorted(self.engine.occupation.released),
            "kv_slots": scheduler.kv_slots[0],
            "kv_slot_length": scheduler.kv_slots[1],
            "counters": asdict(scheduler.counters),
        }
        info = asdict(self.engine.options) | {"weight_version": self.engine.weight_version}
        info["context_length"] = self.engine.context
        return answer(info | {"version": f"agentrl {__version__}", "internal_states": [state]})

    async def metrics(self, _: HTTPRequest) -> Response:
        """Counters and gauges in Prometheus' text format."""
        return metrics_page(self.engine)

    async def flush_cache(self, _: HTTPRequest) -> Response:
        """Forget the prefix cache; refused while requests run, or wait to run."""

        def flush() -> bool:
            scheduler = self.engine.scheduler
            idle = not (scheduler.running or (scheduler.waiting and not self.engine.paused))
            if idle:
                scheduler.flush()
            return idle

        done = await asyncio.wrap_future(self.engine.call(flush))
        return Response("Cache flushed.\n") if done else Response("Flush cache failed.\n", 400)

    async def abort_request(self, request: HTTPRequest) -> Response:
        """End one request, with those whose ids begin with its id, or all; an id that no request has ends none."""
        body = await read_object(request, ("rid", "abort_all", "abort_message"))
        rid = body.get("rid") or ""
        if not isinstance(rid, str):
            raise UserInputError(f"rid: got {rid!r}, wanted a text")
        if body.get("abort_all") or rid in self.frontend.gate.rids:
            await asyncio.wrap_future(self.engine.abort(None if body.get("abort_all") else rid))
        return Response(status_code=200)

    async def pause(self, request: HTTPRequest) -> Response:
        """Stop generating; new requests wait."""
        mode = (await read_object(request, ("mode",))).get("mode", "abort")
        if mode not in PAUSE_MODES:
            raise UserInputError(f"mode: got {mode!r}." + suggest(str(mode), PAUSE_MODES))
        self.frontend.gate.paused = True
        await asyncio.wrap_future(self.engine.pause(mode))
        return answer({"status": "ok", "message": "Generation paused successfully."})

    async def resume(self, request: HTTPRequest) -> Response:
        """Continue after a pause."""
        await read_object(request, ("torch_empty_cache",))
        await asyncio.wrap_future(self.engine.resume())
        await self.frontend.gate.resume()
        return answer({"status": "ok", "message": "Generation continued successfully."})

    async def update_from_disk(self, request: HTTPRequest) -> Response:
        """Replace all weights with those of a Hugging Face folder; a paused engine stays paused."""
        known = ("model_path", "load_format", "weight_version", "flush_cache", "abort_all_requests", "keep_pause")
        body = await read_object(request, known)
        path = body.get("model_path")
        if not isinstance(path, str) or not path:
            raise UserInputError("model_path: wanted a folder with model*.safetensors")
        if body.get("load_format") not in (None, "auto", "safetensors"):
            raise UserInputError(f"load_format: got {body['load_format']!r}, wanted 'auto' or 'safetensors'")
        return await self.update(body, lambda decoder: decoder.load_folder(path))

    async def update_from_tensor(self, request: HTTPRequest) -> Response:
        """Replace weights with those in the body (a safetensors file as base64)."""
        known = ("serialized_named_tensors", "load_format", "flush_cache", "weight_version", "abort_all_requests")
        body = await read_object(request, known)
        if body.get("load_format") != "safetensors":
            raise UserInputError(
                f"load_format: got {body.get('load_format')!r}, wanted 'safetensors' (a safetensors file as base64) or "
                "'shared_memory'. "
                "SGLang's other formats are pickles, which can run code when they are read"
            )
        tensors = _tensors(body.get("serialized_named_tensors"))
        return await self.update(body, lambda decoder: decoder.load_tensors(tensors))

    async def update(self, body: JsonDict, load: Any) -> Response:
        """Apply weights between two steps, name them if the body does, and answer."""
        version = body.get("weight_version")
        if version is not None and not isinstance(version, str):
            raise UserInputError(f"weight_version: got {version!r}, wanted a string")

        flush = bool(body.get("flush_cache", True))

        def replace(model: Any) -> None:
            load(model)
            self.engine.adapter = None
            if flush and self.engine.scheduler.running:
                raise UserInputError(NOT_FLUSHED)

        if body.get("abort_all_requests"):
            await asyncio.wrap_future(self.engine.abort(None))
        try:
            async with self.frontend.gate.update():
                paused = await asyncio.wrap_future(self.engine.update_weights(replace, version=version, flush=flush))
        except UserInputError as error:
            return answer({"success": False, "message": str(error), "num_paused_requests": 0}, 400)
        return answer({"success": True, "message": "Weights updated.", "num_paused_requests": paused})


def _tensors(value: Any) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], str):
        raise UserInputError("serialized_named_tensors: wanted a list of one base64 string (one rank)")
    try:
        return dict(load(base64.b64decode(value[0], validate=True)))
    except (binascii.Error, SafetensorError) as error:
        raise UserInputError(f"serialized_named_tensors: cannot be read ({error})") from None
