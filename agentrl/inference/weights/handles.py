"""Handles of GPU memory: what an engine on the same GPU needs to read a bucket where it lies.

Made by torch's own reductions, as SGLang reads them (`/update_weights_from_tensor`): a pickled list of names and
tensors, each of which says in which allocation it lies and where. All tensors of a bucket lie in one.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch import Tensor
from torch.multiprocessing import reductions

from agentrl.inference.weights.buckets import TensorSpec, unflatten

_DEVICE_ARGUMENT = 6
"""Which argument of `rebuild_cuda_tensor` is the number of the GPU, as the reader counts them."""


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
