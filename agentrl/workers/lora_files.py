"""Adapters on disk: folders as peft has them (`adapter_config.json`, `adapter_model.safetensors`), and their base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from agentrl.config.lora import LoraKeys
from agentrl.errors import CheckpointError, ConfigError
from agentrl.hub import ADAPTER_CONFIG, adapter_folder
from agentrl.workers.base_weights import weights_fingerprint

WEIGHTS, BASE = "adapter_model.safetensors", "base.json"
_PREFIX = "base_model.model."
_STARTS_AT_THE_MODEL = (True, None, False, "gaussian", "eva", "orthogonal")
"""Ways of peft to begin (`init_lora_weights`) that leave the weights alone and let A and B learn.

`pissa`, `olora`, `corda`, `loftq` and `lora_ga` take their first adapter out of the weights: what is left is neither
the reference policy nor what an engine adds the adapter to. With `mica` B never learns.
"""


def peft_config_of(keys: LoraKeys, section: str) -> Any:
    """The configuration for peft: that of the adapter to start from, else what the keys say.

    Raises:
        ConfigError: peft is missing, or the adapter is of another kind than plain LoRA.
    """
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise ConfigError(f"{section}.lora_rank: LoRA needs peft: pip install 'agentrl[lora]' ({error})") from error
    if keys.lora_adapter_path is None:
        return LoraConfig(
            r=keys.lora_rank,
            lora_alpha=keys.lora_alpha,  # type: ignore[arg-type]
            target_modules=keys.target_modules,
            exclude_modules=keys.exclude_modules,
            task_type="CAUSAL_LM",
        )
    folder = _given_folder(keys.lora_adapter_path, section)
    try:
        config = LoraConfig.from_pretrained(str(folder))
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise ConfigError(f"{section}.lora_adapter_path: {folder / ADAPTER_CONFIG} cannot be read: {error}") from error
    _require_plain(config, folder, keys, section)
    config.lora_dropout, config.inference_mode = 0.0, False
    return config


def load_adapter(model: nn.Module, path: str, section: str) -> None:
    """Copy the weights of an adapter into a model that has adapters of the same shapes.

    Raises:
        ConfigError: the file is missing or damaged, or is of another model.
    """
    folder = _given_folder(path, section)
    key = f"{section}.lora_adapter_path"
    try:
        given = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{key}: {folder / WEIGHTS} cannot be read: {error}") from error
    own = {peft_name(name): parameter for name, parameter in model.named_parameters() if is_adapter(name)}
    odd = sorted(given.keys() ^ own.keys())
    if odd:
        side = "has" if odd[0] in given else "lacks"
        raise ConfigError(f"{key}: {folder} is an adapter of another model: it {side} '{odd[0]}' ({len(odd)} differ)")
    for name, parameter in own.items():
        if given[name].shape != parameter.shape:
            got, wanted = list(given[name].shape), list(parameter.shape)
            raise ConfigError(f"{key}: '{name}' of {folder} has the shape {got}, wanted {wanted}")
        parameter.data.copy_(given[name])


def write_adapter(folder: Path, weights: dict[str, torch.Tensor], config: Any, base: str) -> None:
    """Write an adapter as peft reads it, with the fingerprint of the model that it belongs to.

    Args:
        folder: created if missing.
        weights: whole adapter tensors by the model's own names.
        config: peft's configuration.
        base: the model folder, or its name on the hub.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        config.base_model_name_or_path = base
        config.save_pretrained(str(folder))
        named = {peft_name(name): tensor.contiguous() for name, tensor in weights.items()}
        save_file(named, folder / WEIGHTS, metadata={"format": "pt"})
        (folder / BASE).write_text(
            json.dumps({"path": base, "fingerprint": weights_fingerprint(base)}), encoding="utf-8"
        )
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write the adapter {folder}: {error}") from error


def base_of(folder: Path) -> str:
    """The model that an adapter names as its own.

    Raises:
        ConfigError: it names none, or cannot be read.
    """
    try:
        name = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{folder / ADAPTER_CONFIG} cannot be read: {error}") from error
    if not name:
        raise ConfigError(f"{folder / ADAPTER_CONFIG} names no model: give it by --base")
    return str(name)


def check_same_base(folder: Path, base: str) -> None:
    """Refuse an adapter that was trained on other weights than those of `base`.

    Raises:
        CheckpointError: with both models.
    """
    file = folder / BASE
    if not file.is_file():  # an adapter that peft itself has written
        return
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        path, wanted = known["path"], known["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"cannot read {file}: {error}") from error
    if wanted != weights_fingerprint(base):
        raise CheckpointError(
            f"{folder} is an adapter of other weights: it was trained on those of '{path}', got '{base}'. "
            "Give the model that it was trained on"
        )


def check_given_base(keys: LoraKeys, base: str, section: str) -> None:
    """As `check_same_base`, of the adapter that a run starts from, if there is one.

    Raises:
        ConfigError: it was trained on other weights, or is missing.
    """
    if keys.lora_adapter_path is None:
        return
    try:
        check_same_base(_given_folder(keys.lora_adapter_path, section), base)
    except CheckpointError as error:
        raise ConfigError(f"{section}.lora_adapter_path: {error}") from error


def is_adapter(name: str) -> bool:
    """Whether a parameter is one of an adapter."""
    return ".lora_A." in name or ".lora_B." in name


def peft_name(name: str) -> str:
    """`model.layers.0.mlp.up_proj.lora_A.default.weight` as peft's files call it."""
    return _PREFIX + name.replace(".default.weight", ".weight")


def _given_folder(path: str, section: str) -> Path:
    try:
        return adapter_folder(path)
    except ConfigError as error:
        raise ConfigError(f"{section}.lora_adapter_path: {error}") from error


def _require_plain(config: Any, folder: Path, keys: LoraKeys, section: str) -> None:
    """Refuse kinds of adapters that are more than `W + s B A`, and keys that say something else than the adapter."""
    where = f"{section}.lora_adapter_path: {folder / ADAPTER_CONFIG}"
    kind = getattr(config.peft_type, "value", config.peft_type)
    if kind != "LORA":
        raise ConfigError(f"{where} has peft_type {kind}, wanted LORA")
    for name, plain in (
        ("use_dora", (False, None)),
        ("bias", ("none", None)),
        ("lora_bias", (False, None)),
        ("modules_to_save", (None, [])),
        ("target_parameters", (None, [])),
        ("trainable_token_indices", (None, [], {})),
        ("layer_replication", (None, [])),
        ("use_qalora", (None, False)),
        ("use_bdlora", (None, False)),
        ("alora_invocation_tokens", (None, [])),
        ("arrow_config", (None, {})),
        ("kasa_config", (None, {})),
        ("monteclora_config", (None, {})),
        ("velora_config", (None, {})),
        ("init_lora_weights", _STARTS_AT_THE_MODEL),
    ):
        value = getattr(config, name, None)
        if value not in plain:
            raise ConfigError(f"{where} has {name} {value}; agentrl trains plain LoRA, without it")
    for key, own in (("lora_rank", config.r), ("lora_alpha", config.lora_alpha)):
        given = getattr(keys, key)
        if key in keys.model_fields_set and given not in (0, own):
            raise ConfigError(f"{section}.{key}: got {given:g}, but the adapter in {folder} has {own:g}: leave it out")
