"""Writes a sharded model as a Hugging Face folder, file by file and bucket by bucket: no rank ever holds all of it.

::

    model-00001-of-00003.safetensors     rank 0      Every rank gathers every bucket (64 MiB); the rank that writes
    model-00002-of-00003.safetensors     rank 1      its file keeps it. The files are the same for any number of ranks.
    model-00003-of-00003.safetensors     rank 0
    config.json, tokenizer, index        rank 0
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig

from agentrl.config.actor import ModelConfig
from agentrl.errors import CheckpointError
from agentrl.hub import model_folder
from agentrl.inference.weights.buckets import TensorSpec, total_bytes
from agentrl.workers.export import complete_folder
from agentrl.workers.fsdp_model import FSDPModel
from agentrl.workers.shard_files import INDEX, WEIGHTS, ShardFile
from agentrl.workers.weight_source import Bucket, WeightSource

BUCKET_BYTES = 2**26
"""What a rank holds of the model beside its shard while a folder is written."""
FILE_BYTES = 2**30
"""Where a new file begins."""


def write_hf_folder(folder: str | Path, model: FSDPModel, lm: Any, config: ModelConfig) -> None:
    """Write a complete model folder, in the model's own data type. A collective call.

    `AutoModelForCausalLM` and `AutoTokenizer` load it. Adapters are merged into their weights.

    Args:
        folder: created if missing.
        model: the sharded model.
        lm: the transformers model in it.
        config: names the model and tokenizer, and the chat template that replaces its own.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    HFFolder(Path(folder), model, lm, config).write()


class HFFolder:
    """A folder that is about to be written. Arguments as `write_hf_folder`."""

    def __init__(self, folder: Path, model: FSDPModel, lm: Any, config: ModelConfig) -> None:
        self._folder, self._lm, self._config = folder, lm, config
        self._source = WeightSource(model, lm)
        self._dtype = own_dtype(config)
        self._files = _files([unit_specs(units) for units in self._source.plan(BUCKET_BYTES, self._dtype)])
        ranks = dist.get_world_size()
        self._owner = {number: place % ranks for place, file in enumerate(self._files) for number in file.buckets}

    def write(self) -> None:
        """Gather and write, bucket by bucket. A collective call."""
        buckets = self._own_buckets()
        try:
            with _readable(self._folder):
                self._begin()
                self._write_files(buckets)
        finally:
            for _ in buckets:  # the other ranks go on: without this one, each would wait without end
                pass

    def stage(self) -> Callable[[], None]:
        """Gather this rank's files into memory; the function that is returned writes them. A collective call."""
        kept = [Bucket(b.number, b.specs, _copies(b.tensors)) for b in self._own_buckets()]

        def write() -> None:
            with _readable(self._folder):
                self._begin()
                self._write_files(iter(kept))

        return write

    def _own_buckets(self) -> Iterator[Bucket]:
        rank, cpu = dist.get_rank(), torch.device("cpu")
        keep = {number for number, owner in self._owner.items() if owner == rank}
        for bucket in self._source.buckets(BUCKET_BYTES, self._dtype, keep=keep.__contains__, device=cpu):
            if bucket.number in keep:
                yield bucket

    def _begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if dist.get_rank() == 0:
            _write_config(self._folder, self._lm, self._dtype)
            if len(self._files) > 1:
                _write_index(self._folder, self._files)
            complete_folder(self._folder, self._lm, self._config)

    def _write_files(self, buckets: Iterator[Bucket]) -> None:
        for place, file in enumerate(self._files):
            if place % dist.get_world_size() != dist.get_rank():
                continue
            with ShardFile(self._folder / file.name, file.specs) as out:
                for _ in file.buckets:
                    bucket = next(buckets)
                    for spec in bucket.specs:
                        out.write(spec.name, bucket.tensors.pop(spec.name))


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the folder: its name, what it holds, and the numbers of the buckets that this comes in."""

    name: str
    specs: tuple[TensorSpec, ...]
    buckets: tuple[int, ...]


def folder_bytes(model: FSDPModel, lm: Any, config: ModelConfig) -> int:
    """Bytes of the weights in such a folder."""
    return sum(
        total_bytes(unit_specs(units)) for units in WeightSource(model, lm).plan(BUCKET_BYTES, own_dtype(config))
    )


def own_dtype(config: ModelConfig) -> torch.dtype:
    """The data type that the model's configuration names: of its weights in files."""
    path = str(model_folder(config.path))
    named = AutoConfig.from_pretrained(path, trust_remote_code=config.trust_remote_code).dtype
    return named if isinstance(named, torch.dtype) else torch.float32


def unit_specs(units: Any) -> tuple[TensorSpec, ...]:
    """What a bucket holds."""
    return tuple(spec for unit in units for spec in unit.specs)


def _files(buckets: list[tuple[TensorSpec, ...]]) -> list[_File]:
    """Buckets that follow each other share a file until it is full."""
    groups: list[list[int]] = []
    room = 0
    for number, specs in enumerate(buckets):
        size = total_bytes(specs)
        if not groups or size > room:
            groups.append([])
            room = FILE_BYTES
        groups[-1].append(number)
        room -= size
    names = [f"model-{place:05}-of-{len(groups):05}.safetensors" for place in range(1, len(groups) + 1)]
    return [
        _File(name, tuple(spec for number in group for spec in buckets[number]), tuple(group))
        for name, group in zip(names if len(groups) > 1 else [WEIGHTS], groups, strict=True)
    ]


def _write_index(folder: Path, files: list[_File]) -> None:
    places = {spec.name: file.name for file in files for spec in file.specs}
    head = {"total_size": sum(total_bytes(file.specs) for file in files)}
    (folder / INDEX).write_text(json.dumps({"metadata": head, "weight_map": places}, indent=1), encoding="utf-8")


def _write_config(folder: Path, lm: Any, dtype: torch.dtype) -> None:
    config = copy.deepcopy(lm.config)
    config.dtype, config.architectures = dtype, [type(lm).__name__]
    config.save_pretrained(folder)
    if lm._auto_class is not None:
        from transformers.dynamic_module_utils import custom_object_save

        custom_object_save(lm, folder, config=config)


def _copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of one rank on a CPU a bucket holds the live parameters, which the next step changes."""
    if dist.get_world_size() > 1:
        return tensors
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Errors of the system, with the folder."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"cannot write the model folder {folder}: {error}") from error
