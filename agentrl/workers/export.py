"""Writes the weights of a whole model, and what a model folder has beside its weights; see `hf_folder.py`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from agentrl.config.actor import ModelConfig
from agentrl.errors import CheckpointError
from agentrl.hub import model_folder
from agentrl.workers.shard_files import INDEX, WEIGHTS

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


def write_parts(folder: Path, lm: Any, parts: Iterable[dict[str, torch.Tensor]]) -> None:
    """Write safetensors, one file per part, then the index; and the model's configuration.

    A file appears under its name only when it is complete.

    Args:
        folder: created if missing.
        lm: the model; it knows how checkpoints name its weights.
        parts: whole tensors by the model's own names.
    """
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
