"""Routes that inspect or control the engine: health, information, pause, abort, flush, weights, metrics."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from dataclasses import asdict
from functools import partial
from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from agentrl import __version__
from agentrl.errors import UserInputError, suggest
from agentrl.inference.embedded.adapters import adapter_routes
from agentrl.inference.embedded.engine import PAUSE_MODES
from agentrl.inference.embedded.frontend import Frontend
from agentrl.inference.embedded.http import Handler, answer, read_object, refuse
from agentrl.inference.embedded.memory_api import memory_routes
from agentrl.inference.embedded.metrics import metrics_page
from agentrl.inference.embedded.protocol import parse_generate
from agentrl.types import JsonDict

NOT_HERE = {
    "/init_weights_update_group": "send weights by disk or by tensor; NCCL groups need an SGLang server",
    "/update_weights_from_distributed": "send weights by disk or by tensor; NCCL groups need an SGLang server",
    "/destroy_weights_update_group": "send weights by disk or by tensor; NCCL groups need an SGLang server",
}
HEALTH_TIMEOUT_S = 20.0


def admin_routes(frontend: Frontend) -> dict[tuple[str, str], Handler]:
    """Handlers by method and path."""
    admin = Admin(frontend)
    table: dict[tuple[str, str], Handler] = {
        ("GET", "/health"): admin.health,
        ("GET", "/health_generate"): admin.health_generate,
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
        ("POST", "/update_weights_from_tensor"): admin.update_from_tensor,
    }
    table |= adapter_routes(frontend) | memory_routes(frontend.engine)
    return table | {("POST", path): partial(_not_here, path) for path in NOT_HERE}


async def _not_here(path: str, _: HTTPRequest) -> Response:
    return refuse(f"{path}: {NOT_HERE[path]}", 501)


class Admin:
    """The handlers; one object so that they share the engine."""

    def __init__(self, frontend: Frontend) -> None:
        self.frontend, self.engine = frontend, frontend.engine

    async def health(self, _: HTTPRequest) -> Response:
        """200 while the engine's thread is alive."""
        return refuse(self.engine.failed, 503) if self.engine.failed else Response(status_code=200)

    async def health_generate(self, request: HTTPRequest) -> Response:
        """200 once one token was sampled; while paused, the same as `/health`."""
        if self.engine.held or self.engine.failed:
            return await self.health(request)
        try:
            await asyncio.wait_for(self._sign_of_life(), HEALTH_TIMEOUT_S)
        except TimeoutError:
            return refuse(f"no token within {HEALTH_TIMEOUT_S:g} s", 503)
        return await self.health(request)

    async def _sign_of_life(self) -> None:
        """Wait for a token, or where that would wait for others to end, until the thread is between two of theirs."""
        if self.engine.scheduler.joins or not self.engine.scheduler.busy:
            body = {
                "input_ids": [0],
                "sampling_params": {"max_new_tokens": 1, "temperature": 0},
                "lora_path": self.engine.adapter,
            }
            call = parse_generate({**body, "rid": f"HEALTH_CHECK_{time.time()}"}, self.engine, number=0)
            await self.frontend.finished(call.requests)
        else:
            await asyncio.wrap_future(self.engine.call(lambda: None))

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
                "vocab_size": spec.vocab_size,
                "context_length": self.engine.context,
            }
        )

    async def server_info(self, _: HTTPRequest) -> Response:
        """Options and load."""
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
        return answer(info | {"version": f"agentrl {__version__}", "internal_states": [state]})

    async def metrics(self, _: HTTPRequest) -> Response:
        """Counters and gauges in Prometheus' text format."""
        return metrics_page(self.engine)

    async def flush_cache(self, _: HTTPRequest) -> Response:
        """Forget the prefix cache."""
        await asyncio.wrap_future(self.engine.flush_cache())
        return Response("Cache flushed.\n")

    async def abort_request(self, request: HTTPRequest) -> Response:
        """End one request by id (or by the start of its id), or all."""
        body = await read_object(request, ("rid", "abort_all", "abort_message"))
        rid = body.get("rid")
        if not body.get("abort_all") and not (isinstance(rid, str) and rid):
            raise UserInputError("wanted 'rid' (a string) or 'abort_all': true")
        await asyncio.wrap_future(self.engine.abort(None if body.get("abort_all") else rid))
        return Response(status_code=200)

    async def pause(self, request: HTTPRequest) -> Response:
        """Stop generating; new requests wait."""
        mode = (await read_object(request, ("mode",))).get("mode", "abort")
        if mode not in PAUSE_MODES:
            raise UserInputError(f"mode: got {mode!r}." + suggest(str(mode), PAUSE_MODES))
        await asyncio.wrap_future(self.engine.pause(mode))
        return answer({"status": "ok", "message": "Generation paused successfully."})

    async def resume(self, request: HTTPRequest) -> Response:
        """Continue after a pause."""
        await read_object(request, ("torch_empty_cache",))
        await asyncio.wrap_future(self.engine.resume())
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
        return await self._update(body, lambda decoder: decoder.load_folder(path))

    async def update_from_tensor(self, request: HTTPRequest) -> Response:
        """Replace weights with those in the body (a safetensors file as base64)."""
        known = ("serialized_named_tensors", "load_format", "flush_cache", "weight_version", "abort_all_requests")
        body = await read_object(request, known)
        if body.get("load_format") != "safetensors":
            raise UserInputError(
                f"load_format: got {body.get('load_format')!r}, wanted 'safetensors' (a safetensors file as base64). "
                "SGLang's other formats are pickles, which can run code when they are read"
            )
        tensors = _tensors(body.get("serialized_named_tensors"))
        return await self._update(body, lambda decoder: decoder.load_tensors(tensors))

    async def _update(self, body: JsonDict, load: Any) -> Response:
        version = body.get("weight_version")
        if version is not None and not isinstance(version, str):
            raise UserInputError(f"weight_version: got {version!r}, wanted a string")

        def replace(model: Any) -> None:
            load(model)
            self.engine.adapter = None

        future = self.engine.update_weights(
            replace,
            version=version,
            flush=bool(body.get("flush_cache", True)),
            abort_all=bool(body.get("abort_all_requests", False)),
        )
        try:
            paused = await asyncio.wrap_future(future)
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
