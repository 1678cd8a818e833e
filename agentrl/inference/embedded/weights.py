"""From Hugging Face weight names to the decoder's fused tensors. Everything is checked before anything is written."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import UserInputError, suggest


@dataclass(frozen=True, slots=True)
class Target:
    """Where one named weight goes: a view of a fused tensor, the order of its rows, and a factor folded into it."""

    view: Tensor
    order: Tensor | None = None
    scale: float = 1.0
    per_head: bool = False
    """The weight belongs to one head; the view holds a copy of it for each head."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the named weight."""
        return tuple(self.view.shape[1:] if self.per_head else self.view.shape)

    def fill(self, value: Tensor) -> None:
        """Write the weight."""
        if self.order is not None:
            value = value[self.order.to(value.device)]
        if self.scale != 1.0:
            value = value.float() * self.scale
        self.view.copy_(value)


def check_tensors(targets: Mapping[str, Target], shapes: Mapping[str, tuple[int, ...]], *, complete: bool) -> None:
    """Compare names and shapes with those of the model.

    Args:
        targets: the model's weights by name.
        shapes: shapes of the given weights by name.
        complete: every weight of the model must be given.

    Raises:
        UserInputError: an unknown name, a wrong shape or a missing weight.
    """
    for name, shape in shapes.items():
        if name not in targets:
            raise UserInputError(f"the model has no weight '{name}'." + suggest(name, targets))
        if targets[name].shape != shape:
            raise UserInputError(f"weight '{name}': got shape {list(shape)}, wanted {list(targets[name].shape)}")
    missing = [name for name in targets if name not in shapes] if complete else []
    if missing:
        raise UserInputError(f"{len(missing)} weights are missing, the first is '{missing[0]}'")


def plain_name(name: str) -> str:
    """A weight's name without the prefixes that models that see pictures put before it.

    `model.language_model.norm.weight` (Qwen3-VL) is `model.norm.weight`, as in Qwen2.5-VL, and `model.visual.blocks.0`
    is `visual.blocks.0`.
    """
    return name.replace("model.language_model.", "model.", 1).replace("model.visual.", "visual.", 1)


def load_folder(targets: Mapping[str, Target], folder: str | Path, *, ignore: Iterable[str] = ()) -> None:
    """Fill all weights from `model*.safetensors` in a folder.

    Args:
        targets: the model's weights by name.
        folder: the Hugging Face folder.
        ignore: names that are skipped if present (the head of a model that ties it to the embedding).

    Raises:
        UserInputError: no such file, a damaged file, or weights of another model. The old weights are kept.
    """
    from safetensors import SafetensorError, safe_open

    files = sorted(Path(folder).glob("model*.safetensors"))
    if not files:
        raise UserInputError(f"{folder}: no model*.safetensors")
    ignored = set(ignore)
    try:
        handles: list[Any] = [safe_open(file, framework="pt") for file in files]
        keys = [(handle, name) for handle in handles for name in handle.keys() if name not in ignored]  # noqa: SIM118
        check_tensors(targets, {plain_name(n): tuple(h.get_slice(n).get_shape()) for h, n in keys}, complete=True)
        with torch.inference_mode():
            for handle, name in keys:
                targets[plain_name(name)].fill(handle.get_tensor(name))
    except (SafetensorError, OSError, struct.error) as error:
        raise UserInputError(f"{folder}: cannot read the weights ({error})") from error


def load_tensors(targets: Mapping[str, Target], tensors: Mapping[str, Tensor], *, ignore: Iterable[str] = ()) -> None:
    """Fill the given weights; others keep their values.

    Raises:
        UserInputError: weights of another model. The old weights are kept.
    """
    ignored = set(ignore)
    wanted = {plain_name(name): tensor for name, tensor in tensors.items() if name not in ignored}
    check_tensors(targets, {name: tuple(tensor.shape) for name, tensor in wanted.items()}, complete=False)
    with torch.inference_mode():
        for name, tensor in wanted.items():
            targets[name].fill(tensor)
