"""A fingerprint of the weights in a model folder, so that an adapter is never put on other weights."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path

from agentrl.hub import model_folder

_SAMPLE = 1024
"""Bytes that are read from the middle of each tensor: training changes nearly all numbers of those that it changes."""


def weights_fingerprint(model: str) -> str:
    """A short hash of a model's weights: the same for any split into files, another after any training.

    Reads the header of each file and 1 KiB of each tensor.

    Args:
        model: a model folder, or a name of the hub.
    """
    folder = model_folder(model, weights=True)
    files = sorted(folder.glob("*.safetensors"))
    samples = dict(sample for file in files for sample in _tensors(file))
    if not files:
        samples = {file.name: _sampled(file) for file in sorted(folder.glob("*.bin"))}
    digest = hashlib.sha256()
    for name in sorted(samples):
        digest.update(f"{name}\0".encode() + samples[name])
    return digest.hexdigest()[:32]


def _tensors(file: Path) -> Iterator[tuple[str, bytes]]:
    """Name, and type, shape and some bytes, of each tensor in a safetensors file."""
    with file.open("rb") as handle:
        (length,) = struct.unpack("<Q", handle.read(8))
        header = json.loads(handle.read(length))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            handle.seek(8 + length + begin + max(0, (end - begin - _SAMPLE) // 2))
            shape = f"{entry['dtype']} {entry['shape']}".encode()
            yield name, shape + handle.read(min(_SAMPLE, end - begin))


def _sampled(file: Path) -> bytes:
    """Size and parts of a file of another format."""
    size = file.stat().st_size
    with file.open("rb") as handle:
        parts = []
        for place in range(64):
            handle.seek(size * place // 64)
            parts.append(handle.read(_SAMPLE))
    return f"{size}".encode() + b"".join(parts)
