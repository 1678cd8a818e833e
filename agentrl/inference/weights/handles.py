"""Handles of GPU memory: what an engine on the same GPU needs to read a bucket where it lies.

Made by torch's own reductions, as SGLang reads them (`/update_weights_from_tensor`): a pickled list of names and
tensors, each of which says in which allocation it lies and where. All tensors of a bucket lie in one.
"""

from __future__ import annotations

import base64
import io
import pickle
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from agentrl.errors import UserInputError
from agentrl.inference.weights.buckets import TensorSpec, unflatten

_DEVICE_ARGUMENT = 6
"""Which argument of `rebuild_cuda_tensor` is the number of the GPU, as the reader counts them."""

_DAMAGE = (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError, RuntimeError)
"""What reading a damaged payload, or opening memory of another machine or GPU, may raise."""


def device_handles(flat: Tensor, specs: Sequence[TensorSpec], reader_gpu: int) -> str:
    """The handles of a bucket, as base64. The memory must live until the engine has answered.

    Args:
        flat: uint8 on a GPU, the bucket.
        specs: what it holds.
        reader_gpu: the same GPU, as the engine numbers it: rank r of an engine calls its own GPU r.
    """

    class Pickler(ForkingPickler):
        def reducer_override(self, value: Any) -> Any:
            if not isinstance(value, Tensor):
                return NotImplemented
            reduce: Any = reductions.reduce_tensor
            rebuild, arguments = reduce(value)
            before, after = arguments[:_DEVICE_ARGUMENT], arguments[_DEVICE_ARGUMENT + 1 :]
            return rebuild, (*before, reader_gpu, *after)

    buffer = io.BytesIO()
    Pickler(buffer).dump(list(unflatten(flat, specs)))
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def read_handles(payload: object) -> dict[str, Tensor]:
    """The tensors of a bucket where they lie, in memory of the process that lends them.

    Args:
        payload: as `device_handles` gave it.

    Raises:
        UserInputError: something else, or the memory cannot be opened.
    """
    if not isinstance(payload, str):
        raise UserInputError(f"serialized_named_tensors: got {str(payload)[:80]}, wanted a text of handles in base64")
    try:
        named: list[tuple[str, Tensor]] = _Handles(io.BytesIO(base64.b64decode(payload, validate=True))).load()
        return dict(named)
    except _DAMAGE as error:
        raise UserInputError(
            f"serialized_named_tensors: handles of GPU memory cannot be read ({error}): trainer and engine must be "
            "on one GPU; between GPUs use rollout.weight_sync=distributed or disk"
        ) from error


class _Handles(pickle.Unpickler):
    """Reads handles and nothing else: a pickle may otherwise run any code."""

    _PARTS = (
        ("torch.multiprocessing.reductions", "rebuild_cuda_tensor"),
        ("torch.storage", "TypedStorage"),
        ("torch", "Tensor"),
        ("torch", "Size"),
    )

    def find_class(self, module: str, name: str) -> Any:
        """The parts of a handle, and data types."""
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in self._PARTS:
            raise pickle.UnpicklingError(f"{module}.{name} is not a part of a handle")
        return super().find_class(module, name)
