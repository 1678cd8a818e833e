"""Turns an adapter into files for other programs: merged into its model, or as peft reads it."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from transformers import AutoConfig

from agentrl.config.actor import ModelConfig
from agentrl.errors import ConfigError
from agentrl.hub import model_folder
from agentrl.workers.export import complete_folder, write_parts
from agentrl.workers.loading import load_causal_lm
from agentrl.workers.lora import add_adapter, merged_parts
from agentrl.workers.lora_files import BASE, base_of, check_same_base


def write_merged(adapter: Path, out: Path, base: str | None = None) -> None:
    """Write the model of an adapter with the adapter merged into its weights, in their data type.

    The model is in memory once: merged weights are made and written layer by layer.

    Args:
        adapter: a folder as peft writes it, or `lora_adapter/` of a checkpoint.
        out: the folder to create.
        base: the model; None: as the adapter names it.

    Raises:
        ConfigError: the model or the adapter cannot be loaded.
        CheckpointError: the adapter was trained on other weights, or the folder cannot be written.
    """
    named = base_of(adapter) if base is None else base
    try:
        folder = model_folder(named, weights=True)
    except ConfigError as error:
        raise ConfigError(f"{adapter} names its model: {error} Give the model by --base") from error
    check_same_base(adapter, named)
    tokenizer = str(adapter) if (adapter / "tokenizer_config.json").is_file() else None
    model = ModelConfig(path=str(folder), tokenizer_path=tokenizer, lora_adapter_path=str(adapter))
    dtype = AutoConfig.from_pretrained(str(folder)).dtype or torch.float32
    lm = load_causal_lm(model, dtype, "sdpa")
    add_adapter(lm, model, "the adapter")
    out.mkdir(parents=True)
    write_parts(out, lm, merged_parts(lm, dtype))
    complete_folder(out, lm, model)


def copy_adapter(adapter: Path, out: Path) -> None:
    """Copy an adapter without what only agentrl reads."""
    shutil.copytree(adapter, out, ignore=shutil.ignore_patterns(BASE))
