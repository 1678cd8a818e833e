"""Writes whole weights as Hugging Face folders: for the engines (fast), and complete ones for any other use."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from agentrl.config.actor import ModelConfig
from agentrl.errors import CheckpointError
from agentrl.hub import model_folder
from agentrl.workers.loading import quiet_transformers

WEIGHTS = "model.safetensors"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
)


def write_engine_weights(folder: str | Path, lm: Any, weights: dict[str, torch.Tensor]) -> None:
    """Write the files that an engine reads for a weight update: one safetensors file and the model's configuration.

    The file appears under its name only when it is complete.

    Args:
        folder: created if missing.
        lm: the model; it knows how checkpoints name its weights.
        weights: whole tensors by the model's own names.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    from transformers.core_model_loading import revert_weight_conversion

    folder = Path(folder)
    part = folder / f".{WEIGHTS}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(lm.config.to_json_string(), encoding="utf-8")
        save_file(revert_weight_conversion(lm, weights), part, metadata={"format": "pt"})
        os.replace(part, folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write weights to {folder}: {error}") from error


def write_hf_folder(folder: str | Path, lm: Any, weights: dict[str, torch.Tensor], model: ModelConfig) -> None:
    """Write a complete model folder: `AutoModelForCausalLM` and `AutoTokenizer` load it.

    Args:
        folder: created if missing.
        lm: the model; gives configuration and names.
        weights: whole tensors by the model's own names.
        model: names the tokenizer's folder, and the chat template that replaces its own.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with quiet_transformers():
            lm.save_pretrained(folder, state_dict=weights)
        source = model_folder(model.tokenizer_path or model.path)
        for name in TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        if model.chat_template is not None:
            (folder / "chat_template.jinja").write_text(_template_text(model.chat_template), encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write the model folder {folder}: {error}") from error


def _template_text(template: str) -> str:
    path = Path(os.path.expanduser(template)) if len(template) < 1024 and "\n" not in template else None
    return path.read_text(encoding="utf-8") if path is not None and path.is_file() else template
