"""Writes weights as safetensors files, bucket by bucket: one file per rank, and an index if there are several.

The header of such a file names every tensor with its place, so it is written first, from the plan::

    8 bytes   length of the header
    {"model.norm.weight": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}, …}
    the tensors' bytes, in that order
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.errors import CheckpointError
from agentrl.inference.weights.buckets import TensorSpec
from agentrl.workers.weight_source import WeightSource

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


class ShardFile:
    """A safetensors file that is written tensor by tensor. A context manager; it gets its name when it is complete.

    Args:
        path: the file.
        specs: what `write` will be given, in this order.
    """

    def __init__(self, path: Path, specs: Sequence[TensorSpec]) -> None:
        self._path, self._part = path, path.with_name(f".{path.name}.part")
        self._left = list(reversed(specs))
        entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        place = 0
        for spec in specs:
            ends = [place, place + spec.num_bytes]
            entries[spec.name] = {"dtype": _DTYPES[spec.dtype], "shape": list(spec.shape), "data_offsets": ends}
            place = ends[1]
        header = json.dumps(entries, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        self._file = self._part.open("wb")
        self._file.write(struct.pack("<Q", len(header)) + header)

    def write(self, name: str, tensor: Tensor) -> None:
        """Append the next tensor."""
        spec = self._left.pop()
        if (spec.name, spec.shape, spec.dtype) != (name, tuple(tensor.shape), tensor.dtype):
            raise ValueError(f"got {name} {tuple(tensor.shape)} {tensor.dtype}, wanted {spec}")
        if tensor.numel():
            flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
            self._file.write(flat.numpy().data)

    def __enter__(self) -> Self:
        """The open file."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it; if all tensors were written, give it its name."""
        self._file.close()
        if error is None and not self._left:
            os.replace(self._part, self._path)
        else:
            self._part.unlink(missing_ok=True)


def write_shards(
    folder: str | Path, source: WeightSource, config: Any, max_bytes: int, dtype: torch.dtype | None
) -> None:
    """Write the files that an engine reads for a weight update: one per rank, and the model's configuration.

    Rank r keeps the buckets r, r + n, … and writes them as they come, so that it holds one at a time. A collective
    call.

    Args:
        folder: created if missing; all ranks and all engines see it.
        source: the weights.
        config: the transformers configuration.
        max_bytes: most bytes of a bucket.
        dtype: what floating tensors are cast to; None: as they are.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    folder, rank, world = Path(folder), dist.get_rank(), dist.get_world_size()
    plan = [[spec for unit in units for spec in unit.specs] for units in source.plan(max_bytes, dtype)]
    world = min(world, len(plan))
    names = [WEIGHTS] if world == 1 else [f"model-{n + 1:05}-of-{world:05}.safetensors" for n in range(world)]
    own = [spec for specs in plan[rank::world] for spec in specs] if rank < world else []
    buckets = source.buckets(max_bytes, dtype, keep=lambda number: number % world == rank, device=torch.device("cpu"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if rank == 0:
            (folder / "config.json").write_text(config.to_json_string(), encoding="utf-8")
            if world > 1:
                places = {spec.name: names[n % world] for n, specs in enumerate(plan) for spec in specs}
                index = {"metadata": {}, "weight_map": places}
                (folder / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
        if own:
            with ShardFile(folder / names[rank], own) as file:
                for bucket in buckets:
                    for name in list(bucket.tensors):
                        file.write(name, bucket.tensors.pop(name))
    except OSError as error:
        raise CheckpointError(f"cannot write weights to {folder}: {error}") from error
    finally:
        for _ in buckets:  # the other ranks go on: without this one, each would wait without end
            pass
