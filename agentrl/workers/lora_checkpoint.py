"""The adapter of a worker's checkpoint, beside its shards: `lora_adapter/`, a folder as peft writes and reads it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import nn

from agentrl.config.actor import BackboneConfig, ModelConfig
from agentrl.errors import CheckpointError
from agentrl.hub import ADAPTER_CONFIG, ADAPTER_FOLDER
from agentrl.workers.export import copy_tokenizer
from agentrl.workers.fsdp_model import FSDPModel
from agentrl.workers.lora import PEFT_NAME, adapted_layers
from agentrl.workers.lora_files import WEIGHTS, check_same_base, is_adapter, peft_name, write_adapter


def export_adapter(folder: Path, model: FSDPModel, transformer: nn.Module, config: BackboneConfig) -> None:
    """Write the adapter alone, with the tokenizer of a policy. A collective call.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    adapters = {name: tensor for name, tensor in model.gathered_own(transformer).items() if is_adapter(name)}
    if dist.get_rank() == 0:
        write_adapter(folder, adapters, _portable(transformer), config.path)
        if isinstance(config, ModelConfig):
            copy_tokenizer(folder, config)


def check_adapter(folder: Path, model: FSDPModel, transformer: nn.Module, config: BackboneConfig) -> None:
    """Refuse a worker's checkpoint that was saved with another adapter than this run has, or on other weights.

    Raises:
        CheckpointError: with both.
    """
    adapter = folder / ADAPTER_FOLDER
    saved = (adapter / ADAPTER_CONFIG).is_file()
    if saved != model.adapted:
        what = (
            "holds a LoRA adapter, but this run trains all weights"
            if saved
            else "holds no adapter, but this run has LoRA"
        )
        raise CheckpointError(f"{folder} {what}: start it with the lora_rank that the checkpoint was made with")
    if saved:
        _check_same_adapter(adapter, transformer)
        check_same_base(adapter, config.path)


def _check_same_adapter(folder: Path, transformer: nn.Module) -> None:
    """Compare the shapes and scales of the saved adapter with those of the model."""
    from peft import LoraConfig

    try:
        saved = LoraConfig.from_pretrained(str(folder))
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"cannot read the adapter {folder}: {error}") from error
    own: Any = _config(transformer)
    for key, was, now in (("lora_rank", saved.r, own.r), ("lora_alpha", saved.lora_alpha, own.lora_alpha)):
        if was != now:
            raise CheckpointError(f"{folder} was trained with {key}={was:g}, got {key}={now:g}")
    wanted = {peft_name(name) for name, _ in transformer.named_parameters() if is_adapter(name)}
    odd = sorted(shapes.keys() ^ wanted)
    if odd:
        side = "has" if odd[0] in shapes else "lacks"
        raise CheckpointError(f"{folder} was trained with other target_modules: it {side} '{odd[0]}'")


def _config(transformer: nn.Module) -> Any:
    configs: Any = transformer.peft_config
    return configs[PEFT_NAME]


def _portable(transformer: nn.Module) -> Any:
    """The configuration for peft, with the layers' names in place of their whole paths, where these say the same."""
    config = copy.copy(_config(transformer))
    paths = {name for name, _ in adapted_layers(transformer)}
    names = {path.rpartition(".")[2] for path in paths}
    same = {
        name.removesuffix(".base_layer")
        for name, _ in transformer.named_modules()
        if name.removesuffix(".base_layer").rpartition(".")[2] in names
    }
    config.target_modules = sorted(names) if same == paths else sorted(paths)
    config.exclude_modules = None
    config.inference_mode = True
    return config
