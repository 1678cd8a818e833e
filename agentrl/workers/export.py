"""Writes whole weights for the engines, and what a model folder has beside its weights; see `hf_folder.py`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file

from agentrl.config.actor import ModelConfig
from agentrl.errors import CheckpointError
from agentrl.hub import model_folder

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
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


def write_engine_weights(folder: str | Path, lm: Any, parts: Iterable[dict[str, torch.Tensor]]) -> None:
    """Write the files that an engine reads for a weight update: safetensors and the model's configuration.

    A file appears under its name only when it is complete. Several parts (a model with adapters, which is merged layer
    by layer) make several files and an index, as Hugging Face has them. A collective call: taking a part is one.

    Args:
        folder: created if missing.
        lm: the model; it knows how checkpoints name its weights.
        parts: whole tensors by the model's own names, on rank 0; empty dictionaries on the others.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    remaining = iter(parts)
    try:
        if dist.get_rank() == 0:
            write_parts(Path(folder), lm, remaining)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write weights to {folder}: {error}") from error
    finally:
        for _ in remaining:  # the other ranks go on: without this one, each would wait without end
            pass


def write_parts(folder: Path, lm: Any, parts: Iterable[dict[str, torch.Tensor]]) -> None:
    """Write one file per part, then the index, as `write_engine_weights` on rank 0."""
    from transformers.core_model_loading import revert_weight_conversion

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(lm.config.to_json_string(), encoding="utf-8")
    written: list[list[str]] = []
    for number, weights in enumerate(parts):
        named = revert_weight_conversion(lm, weights)
        save_file(named, folder / f".part_{number}", metadata={"format": "pt"})
        written.append(list(named))
    files = [f"model-{number + 1:05}-of-{len(written):05}.safetensors" for number in range(len(written))]
    if len(written) == 1:
        files = [WEIGHTS]
    else:
        places = {name: file for file, names in zip(files, written, strict=True) for name in names}
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}, indent=1), encoding="utf-8")
    for number, file in enumerate(files):
        os.replace(folder / f".part_{number}", folder / file)


def complete_folder(folder: Path, lm: Any, model: ModelConfig) -> None:
    """Add what a folder with weights and a configuration lacks. Errors as `copy_tokenizer`."""
    if lm.generation_config is not None:
        (folder / "generation_config.json").write_text(lm.generation_config.to_json_string(), encoding="utf-8")
    copy_tokenizer(folder, model)


def copy_tokenizer(folder: Path, model: ModelConfig) -> None:
    """Copy the files of the tokenizer, with the chat template that the run uses.

    Raises:
        CheckpointError: they cannot be written.
    """
    try:
        source = model_folder(model.tokenizer_path or model.path)
        for name in TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        if model.chat_template is not None:
            (folder / "chat_template.jinja").write_text(_template_text(model.chat_template), encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"cannot write the tokenizer to {folder}: {error}") from error


def _template_text(template: str) -> str:
    path = Path(os.path.expanduser(template)) if len(template) < 1024 and "\n" not in template else None
    return path.read_text(encoding="utf-8") if path is not None and path.is_file() else template
