"""What a bucket of weights holds, and how it travels: one run of bytes, or a file.

A bucket of three tensors as bytes, in the order of their names::

    norm.weight    float32   (4,)      bytes  0 to 16
    q_proj.weight  bfloat16  (2, 4)    bytes 16 to 32
    q_proj.bias    bfloat16  (2,)      bytes 32 to 36
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import UserInputError


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and data type of a weight, as a checkpoint has them."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * self.dtype.itemsize


def total_bytes(specs: Sequence[TensorSpec]) -> int:
    """Bytes of all tensors."""
    return sum(spec.num_bytes for spec in specs)


def specs_of(tensors: Mapping[str, Tensor]) -> list[TensorSpec]:
    """What a dictionary of tensors holds."""
    return [TensorSpec(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()]


def flatten(tensors: Mapping[str, Tensor], out: Tensor | None = None) -> Tensor:
    """The bytes of all tensors, one behind the other, in the order of the dictionary.

    Args:
        tensors: on one device.
        out: at least as many bytes, into whose front they are copied; None: new memory.

    Returns:
        uint8, (bytes of all tensors,).
    """
    parts = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors.values()]
    if out is None:
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)
    place = 0
    for part in parts:
        out[place : place + len(part)].copy_(part)
        place += len(part)
    return out[:place]


def unflatten(flat: Tensor, specs: Sequence[TensorSpec]) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a run of bytes. They share its memory, unless one begins where its data type may not.

    Raises:
        UserInputError: the bytes are not those of these tensors.
    """
    if len(flat) != total_bytes(specs):
        raise UserInputError(f"a bucket of weights: got {len(flat)} bytes, wanted {total_bytes(specs)}")
    place = 0
    for spec in specs:
        part = flat[place : place + spec.num_bytes]
        if part.storage_offset() % spec.dtype.itemsize:
            part = part.clone()
        yield spec.name, part.view(spec.dtype).view(spec.shape)
        place += spec.num_bytes


def as_fields(specs: Sequence[TensorSpec]) -> dict[str, list[Any]]:
    """`names`, `dtypes` and `shapes` as SGLang's requests have them: `["model.norm.weight"], ["float32"], [[64]]`."""
    return {
        "names": [spec.name for spec in specs],
        "dtypes": [str(spec.dtype).removeprefix("torch.") for spec in specs],
        "shapes": [list(spec.shape) for spec in specs],
    }


def from_fields(names: Any, dtypes: Any, shapes: Any) -> list[TensorSpec]:
    """What `as_fields` gave.

    Raises:
        UserInputError: the lists are missing, of unequal length, or hold something else.
    """
    lists = {"names": names, "dtypes": dtypes, "shapes": shapes}
    for field, values in lists.items():
        if not isinstance(values, list) or len(values) != len(names):
            raise UserInputError(f"{field}: got {str(values)[:80]}, wanted a list with one entry for each tensor")
    specs = []
    for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
        kind = getattr(torch, dtype, None) if isinstance(dtype, str) else None
        sized = isinstance(shape, list) and all(isinstance(size, int) and size >= 0 for size in shape)
        if not isinstance(name, str) or not isinstance(kind, torch.dtype) or not sized:
            raise UserInputError(
                f"names, dtypes, shapes: got {name!r}, {dtype!r}, {shape!r}, wanted such as 'model.norm.weight', "
                "'float32', [64]"
            )
        specs.append(TensorSpec(name, tuple(shape), kind))
    return specs
