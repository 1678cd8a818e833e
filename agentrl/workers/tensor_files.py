"""Reads parts of a model folder's tensors, and never more of a file than was asked for.

A parameter is one tensor of a file, or several: transformers stacks the experts of a layer into one parameter::

    mlp.experts.0.gate_proj.weight (I, H)  }  Joined(dim 1): rows :I gate, rows I: up
    mlp.experts.0.up_proj.weight   (I, H)  }  of Stacked(dim 0): one entry per expert
    …                                      }  ->  mlp.experts.gate_up_proj (E, 2I, H)

A rank that holds experts 2 and 3 then reads the files of those two.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open

Region = tuple[slice, ...]
"""Of a tensor, from where to where in each dimension."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PIECE_BYTES = 2**25
"""Most bytes that are read at a time: what a rank holds beside its shard."""


class TensorSource(Protocol):
    """Where the numbers of a parameter are."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole parameter."""

    def read(self, region: Region, out: torch.Tensor) -> None:
        """Write a region of the parameter to `out`, in the data type of `out`."""


class TensorFiles:
    """The safetensors files of a model folder, open for reading.

    Args:
        folder: has `model.safetensors`, or an index of several files.

    Raises:
        OSError: a file is missing.
        SafetensorError: a file is damaged.
        ValueError: the index is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._slices: dict[str, Any] = {}
        self._handles: list[Any] = [safe_open(file, framework="pt", device="cpu") for file in safetensors_files(folder)]
        for handle in self._handles:
            for name in handle.keys():  # noqa: SIM118 - not a dictionary
                part = handle.get_slice(name)
                self._slices[name], self.shapes[name] = part, tuple(part.get_shape())

    def read(self, name: str, region: Region) -> torch.Tensor:
        """A region of a tensor, as the file has it."""
        part = self._slices[name]
        piece: torch.Tensor = part[region] if region else part[...]
        return piece

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors hold the same numbers; they are compared piece by piece."""
        if self.shapes[one] != self.shapes[other]:
            return False
        regions = _pieces(tuple(slice(0, size) for size in self.shapes[one]), 4)
        return all(torch.equal(self.read(one, region), self.read(other, region)) for region in regions)

    def close(self) -> None:
        """Let go of the files."""
        self._slices.clear()
        self._handles.clear()


def safetensors_files(folder: Path) -> list[Path]:
    """The files that hold a model's weights; empty: it has none of this kind.

    Raises:
        ValueError: the index is damaged.
    """
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        return []
    try:
        places = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        return [folder / name for name in sorted(set(places.values()))]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{INDEX} has no weight_map: {error}") from error


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a file."""

    files: TensorFiles
    name: str

    def __str__(self) -> str:
        return f"'{self.name}'"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor."""
        return self.files.shapes[self.name]

    def read(self, region: Region, out: torch.Tensor) -> None:
        """As `TensorSource`."""
        start = region[0].start if region else 0
        for piece in _pieces(region, out.element_size()):
            # Of rows 40 to 80, rows 60 to 70 are rows 20 to 30 of `out`.
            place = out[piece[0].start - start : piece[0].stop - start] if region else out
            place.copy_(self.files.read(self.name, piece))


@dataclass(frozen=True, slots=True)
class Stacked:
    """Equal parts along a new dimension."""

    parts: Sequence[TensorSource]
    dim: int

    def __str__(self) -> str:
        return f"the {len(self.parts)} parts from {self.parts[0]} on"

    @property
    def shape(self) -> tuple[int, ...]:
        """With the new dimension.

        Raises:
            ValueError: the parts have different shapes.
        """
        whole = self.parts[0].shape
        for part in self.parts[1:]:
            if part.shape != whole:
                raise ValueError(f"{self.parts[0]} has the shape {list(whole)}, {part} has {list(part.shape)}")
        return (*whole[: self.dim], len(self.parts), *whole[self.dim :])

    def read(self, region: Region, out: torch.Tensor) -> None:
        """As `TensorSource`."""
        inner = region[: self.dim] + region[self.dim + 1 :]
        for place, number in enumerate(range(region[self.dim].start, region[self.dim].stop)):
            self.parts[number].read(inner, out.select(self.dim, place))


@dataclass(frozen=True, slots=True)
class Joined:
    """Parts that follow each other along a dimension."""

    parts: Sequence[TensorSource]
    dim: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all parts together.

        Raises:
            ValueError: the parts differ in another dimension.
        """
        whole = self.parts[0].shape
        for part in self.parts[1:]:
            for place, (one, other) in enumerate(zip(whole, part.shape, strict=True)):
                if place != self.dim and one != other:
                    raise ValueError(f"{self.parts[0]} has the shape {list(whole)}, {part} has {list(part.shape)}")
        return (*whole[: self.dim], sum(part.shape[self.dim] for part in self.parts), *whole[self.dim + 1 :])

    def read(self, region: Region, out: torch.Tensor) -> None:
        """As `TensorSource`."""
        wanted, begin = region[self.dim], 0
        for part in self.parts:
            size = part.shape[self.dim]
            # Wanted 40 to 80, this part has 64 to 128 of the whole: its 0 to 16, which go to 24 to 40 of `out`.
            first, last = max(wanted.start, begin), min(wanted.stop, begin + size)
            if first < last:
                inner = (*region[: self.dim], slice(first - begin, last - begin), *region[self.dim + 1 :])
                part.read(inner, out.narrow(self.dim, first - wanted.start, last - first))
            begin += size


def _pieces(region: Region, element_size: int) -> list[Region]:
    """A region in parts of some rows each, of at most `PIECE_BYTES`."""
    if not region:
        return [region]
    row = element_size
    for part in region[1:]:
        row *= part.stop - part.start
    rows, first = max(1, PIECE_BYTES // max(row, 1)), region[0]
    return [
        (slice(start, min(start + rows, first.stop)), *region[1:]) for start in range(first.start, first.stop, rows)
    ]
