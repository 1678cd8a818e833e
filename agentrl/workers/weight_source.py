"""Takes the weights off sharded ranks, bucket by bucket, so that no rank ever holds the whole model.

::

    source = WeightSource(model, lm)                      lm: 272 parameters, sharded over 4 ranks
    for bucket in source.buckets(2**28, torch.bfloat16, keep=lambda number: number % 4 == rank):
        ...                                               every rank takes every bucket; each keeps every fourth

A bucket is gathered when it is taken: whoever keeps none of it holds one tensor at a time. Names, shapes and data types
are those of the model's checkpoint: stacked experts are taken apart again, adapters are merged, tied weights come once.
They are known before anything is gathered (`WeightSource.plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from agentrl.inference.weights.buckets import TensorSpec, specs_of, total_bytes
from agentrl.workers.fsdp_model import FSDPModel, _gathered, _named_state, _reshard
from agentrl.workers.lora import Added, layer_names, plain_state

Part = tuple[Tensor, Added | None]
"""A parameter or buffer, and what an adapter adds to it."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Parameters that must be gathered together, and the checkpoint's tensors that come from them.

    A fused `gate_up_proj` of 4 experts is one parameter and 8 tensors of a checkpoint.
    """

    names: tuple[str, ...]
    specs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Whole tensors of the checkpoint.

    Attributes:
        number: from 0.
        specs: what the bucket holds, also where it is not kept.
        tensors: by name, contiguous; empty on a rank that does not keep the bucket. With one rank and no other data
            type they are the live parameters, not copies.
    """

    number: int
    specs: tuple[TensorSpec, ...]
    tensors: dict[str, Tensor] = field(default_factory=dict)


class WeightSource:
    """The weights of a model as its checkpoint has them.

    Args:
        model: the sharded net.
        lm: the transformers model in it, which knows how its checkpoint names and cuts its weights.
    """

    def __init__(self, model: FSDPModel, lm: Any) -> None:
        self._net, self._lm = model.net, lm
        self._units: list[Unit] | None = None

    def plan(self, max_bytes: int, dtype: torch.dtype | None = None) -> list[list[Unit]]:
        """What each bucket of `buckets` will hold. Not a collective call: every rank finds the same.

        Args:
            max_bytes: most bytes of a bucket, unless a single unit has more.
            dtype: what floating tensors are cast to; None: as they are.
        """
        groups: list[list[Unit]] = []
        room = 0
        for unit in map(_in_dtype(dtype), self._all_units()):
            size = total_bytes(unit.specs)
            if not groups or size > room:
                groups.append([])
                room = max_bytes
            groups[-1].append(unit)
            room -= size
        return groups

    @torch.no_grad()
    def buckets(
        self,
        max_bytes: int,
        dtype: torch.dtype | None = None,
        *,
        keep: Callable[[int], bool] = lambda number: True,
        device: torch.device | None = None,
    ) -> Iterator[Bucket]:
        """Gather one bucket after the other. A collective call: every rank must take all of them.

        Args:
            max_bytes: as in `plan`.
            dtype: as in `plan`.
            keep: whether this rank needs the bucket with this number.
            device: where kept tensors go as soon as they are whole; None: they stay where the model is.
        """
        _reshard(self._net)
        parts = self._parts()
        for number, units in enumerate(self.plan(max_bytes, dtype)):
            tensors: dict[str, Tensor] = {}
            for unit in units:
                wanted = {spec.name: spec.dtype for spec in unit.specs}
                kept = keep(number)
                whole = {n: _whole(*parts[n], _cast_to(parts[n][0], dtype), merge=kept) for n in unit.names}
                if kept:
                    named = _as_in_checkpoint(self._lm, whole)
                    for name in list(named):
                        tensors[name] = named.pop(name).to(device, wanted[name]).contiguous()
                del whole
            yield Bucket(number, tuple(spec for unit in units for spec in unit.specs), tensors)

    def _parts(self) -> dict[str, Part]:
        state = _named_state(self._lm)
        return {name: (tensor, added) for name, tensor, added in plain_state(self._lm, state)}

    def _all_units(self) -> list[Unit]:
        if self._units is None:
            self._units = _units_of(self._lm, {name: tensor for name, (tensor, _) in self._parts().items()})
        return self._units


def _units_of(lm: Any, state: dict[str, Tensor]) -> list[Unit]:
    """The smallest parts of a state that turn into the checkpoint's tensors on their own, tried on the meta device.

    Mostly each parameter is one. Where a checkpoint joins what the model has apart, a layer is one.
    """
    shapes = {name: torch.empty(t.shape, dtype=t.dtype, device="meta") for name, t in state.items()}
    expected = sorted(specs_of(_as_in_checkpoint(lm, shapes)), key=lambda spec: spec.name)
    names = list(shapes)
    found: list[Unit] = []
    for groups in ([[name] for name in names], layer_names(names), [names]):
        try:
            found = [_unit(lm, group, shapes) for group in groups]
        except (ValueError, KeyError, RuntimeError, IndexError):  # a conversion misses its other tensors
            continue
        if sorted((spec for unit in found for spec in unit.specs), key=lambda spec: spec.name) == expected:
            break
    return found


def _unit(lm: Any, names: Sequence[str], shapes: dict[str, Tensor]) -> Unit:
    return Unit(tuple(names), tuple(specs_of(_as_in_checkpoint(lm, {name: shapes[name] for name in names}))))


def _as_in_checkpoint(lm: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    from transformers.core_model_loading import revert_weight_conversion

    named: dict[str, Tensor] = revert_weight_conversion(lm, tensors)
    return named


def _in_dtype(dtype: torch.dtype | None) -> Callable[[Unit], Unit]:
    def cast(unit: Unit) -> Unit:
        if dtype is None:
            return unit
        specs = (TensorSpec(s.name, s.shape, dtype if s.dtype.is_floating_point else s.dtype) for s in unit.specs)
        return Unit(unit.names, tuple(specs))

    return cast


def _cast_to(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype


def _whole(tensor: Tensor, added: Added | None, dtype: torch.dtype, *, merge: bool) -> Tensor:
    """A whole weight on every rank; with its adapter if `merge`."""
    if added is None:
        return _gathered(tensor.detach().to(dtype))  # cast before it is gathered: in bfloat16 half as much travels
    whole, a, b = (_gathered(part.detach()) for part in (tensor, added.a, added.b))
    return added.to(whole, a, b) if merge else whole  # in float32, so that it is rounded once
