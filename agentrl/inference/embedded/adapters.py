"""LoRA adapters in the embedded engine, by SGLang's requests: one at a time, merged into the weights.

A request names it in `lora_path`, as with SGLang; one that names another adapter, or none, is refused while the weights
are merged with this one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from torch import Tensor

from agentrl.errors import UserInputError, suggest
from agentrl.inference.embedded.decoder import Decoder
from agentrl.inference.embedded.frontend import Frontend
from agentrl.inference.embedded.http import Handler, answer, read_object
from agentrl.inference.embedded.sampling_params import UnsupportedFeatureError
from agentrl.inference.embedded.weights import Target

_PREFIX, _LEAF = "base_model.model.", ".weight"


def adapter_routes(frontend: Frontend) -> dict[tuple[str, str], Handler]:
    """Handlers by method and path."""
    return {
        ("POST", "/load_lora_adapter"): partial(_load, frontend),
        ("POST", "/unload_lora_adapter"): partial(_unload, frontend),
        ("POST", "/update_weight_version"): partial(_name_version, frontend),
    }


async def _load(frontend: Frontend, request: HTTPRequest) -> Response:
    """Merge an adapter (a folder as peft writes it) into the weights."""
    body = await read_object(request, ("lora_name", "lora_path", "pinned"))
    name, path = _text(body, "lora_name"), _text(body, "lora_path")
    engine = frontend.engine

    def load(model: Any) -> None:
        if engine.adapter is not None:
            raise UserInputError(f"lora_name: '{engine.adapter}' is loaded, and one adapter is merged: unload it first")
        if not isinstance(model, Decoder):
            raise UnsupportedFeatureError("this runner takes no adapters: send merged weights")
        merge_adapter(model.targets, Path(path), Path(engine.options.model))
        engine.adapter = name

    return await _change(frontend, load, {name: path})


async def _unload(frontend: Frontend, request: HTTPRequest) -> Response:
    """Give the weights that the adapter changed their own values again."""
    name = _text(await read_object(request, ("lora_name",)), "lora_name")
    engine = frontend.engine

    def unload(model: Any) -> None:
        if engine.adapter != name:
            raise UserInputError(f"lora_name: no adapter '{name}' is loaded")
        model.load_folder(engine.options.model)
        engine.adapter = None

    return await _change(frontend, unload, {})


async def _change(frontend: Frontend, change: Callable[[Any], None], loaded: dict[str, str]) -> Response:
    try:
        async with frontend.gate.update():
            await asyncio.wrap_future(frontend.engine.update_weights(change, version=None, flush=True))
    except UnsupportedFeatureError:
        raise
    except UserInputError as error:
        return answer({"success": False, "error_message": str(error), "loaded_adapters": {}}, 400)
    return answer({"success": True, "error_message": "", "loaded_adapters": loaded})


async def _name_version(frontend: Frontend, request: HTTPRequest) -> Response:
    """Name the weights in use: an adapter brings no version."""
    version = _text(await read_object(request, ("new_version", "abort_all_requests")), "new_version")
    await asyncio.wrap_future(frontend.engine.update_weights(lambda _: None, version=version, flush=False))
    return answer({"success": True, "message": f"Weight version updated to {version}", "new_version": version})


def merge_adapter(targets: Mapping[str, Target], adapter: Path, base: Path) -> None:
    """Fill the weights that an adapter changes with `W + s B A`, where W is read from the model folder again.

    Args:
        targets: the model's weights by name.
        adapter: a folder with `adapter_config.json` and `adapter_model.safetensors`.
        base: the model folder.

    Raises:
        UserInputError: an adapter of another kind or of another model. The old weights are kept.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
        given = load_file(adapter / "adapter_model.safetensors")
        scale = _scale(config)
        merged = {
            name: (weight.float() + scale * (b.float() @ a.float()))
            for name, weight, a, b in _weights_of(given, targets, base)
        }
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserInputError(f"lora_path: {adapter} cannot be read ({error})") from error
    with torch.inference_mode():
        for name, weight in merged.items():
            targets[name].fill(weight)


def _scale(config: Mapping[str, Any]) -> float:
    odd = [key for key in ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save") if config.get(key)]
    if odd or config.get("peft_type") != "LORA":
        raise UserInputError(
            f"lora_path: wanted a plain LoRA adapter, got {odd[0] if odd else config.get('peft_type')}"
        )
    rank = float(config["r"])
    return float(config["lora_alpha"]) / (rank**0.5 if config.get("use_rslora") else rank)


def _weights_of(
    given: Mapping[str, Tensor], targets: Mapping[str, Target], base: Path
) -> list[tuple[str, Tensor, Tensor, Tensor]]:
    """Name, own weight, A and B of each weight that the adapter changes."""
    from safetensors import safe_open

    paths = {name.removeprefix(_PREFIX).partition(".lora_")[0] for name in given}
    unknown = [path for path in sorted(paths) if path + _LEAF not in targets]
    if unknown:
        hint = suggest(unknown[0] + _LEAF, targets)
        raise UserInputError(f"lora_path: the model has no weight '{unknown[0]}{_LEAF}'.{hint}")
    own: dict[str, Tensor] = {}
    for file in base.glob("model*.safetensors"):
        with safe_open(file, framework="pt") as handle:
            own |= {name: handle.get_tensor(name) for name in handle.keys() if name.removesuffix(_LEAF) in paths}  # noqa: SIM118
    pair = "{}{}.lora_{}{}".format
    found = []
    for path in paths:
        weight, a, b = own[path + _LEAF], given[pair(_PREFIX, path, "A", _LEAF)], given[pair(_PREFIX, path, "B", _LEAF)]
        if [*b.shape, *a.shape] != [weight.shape[0], *a.shape[:1] * 2, *weight.shape[1:]]:
            shapes = f"B {list(b.shape)} and A {list(a.shape)} of '{path}'"
            raise UserInputError(f"lora_path: got {shapes}, but the weight there is {list(weight.shape)}")
        found.append((path + _LEAF, weight, a, b))
    return found


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value:
        raise UserInputError(f"{key}: got {value!r}, wanted a text")
    return value
