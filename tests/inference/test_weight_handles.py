"""Handles of GPU memory, as SGLang's scheduler reads them: on a simulated GPU, with made-up allocations."""

from __future__ import annotations

import base64
import io
import pickle
from typing import Any

import pytest
import torch
from simulated_cuda import simulated_cuda
from torch.multiprocessing import reductions

from agentrl.inference.weights.buckets import flatten, specs_of
from agentrl.inference.weights.handles import device_handles

ALLOWED = {
    ("torch.multiprocessing.reductions", "rebuild_cuda_tensor"),
    ("torch", "Tensor"),
    ("torch", "Size"),
    ("torch", "float32"),
    ("torch", "bfloat16"),
    ("torch.storage", "TypedStorage"),
}
"""Of what SGLang 0.5.23 lets a payload name (`SafeUnpickler`), what this one may need."""


class Engine(pickle.Unpickler):
    """Reads a payload as an engine on the same GPU does."""

    def find_class(self, module: str, name: str) -> Any:
        assert (module, name) in ALLOWED, f"{module}.{name} is refused by SGLang"
        return super().find_class(module, name)


def test_a_bucket_travels_as_handles_of_one_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    allocations: dict[bytes, torch.Tensor] = {}

    def reduce_tensor(tensor: torch.Tensor) -> Any:
        """What torch does with a tensor on a GPU; `_share_cuda_` of a CPU storage does not exist."""
        storage = tensor._typed_storage()
        handle = b"allocation at %d" % storage._untyped_storage.data_ptr()
        allocations[handle] = torch.empty(0, dtype=torch.uint8).set_(storage._untyped_storage)
        size, counters = storage._untyped_storage.nbytes(), (False, b"", 0, b"", True)
        place = (type(tensor), tensor.size(), tensor.stride(), tensor.storage_offset(), type(storage), tensor.dtype)
        return reductions.rebuild_cuda_tensor, (*place, 0, handle, size, 0, *counters)

    def rebuild_cuda_tensor(*arguments: Any) -> torch.Tensor:
        _, size, stride, offset, _, dtype, gpu, handle = arguments[:8]
        gpus.append(gpu)
        return allocations[handle].view(dtype).as_strided(size, stride, offset)

    gpus: list[int] = []
    with simulated_cuda(monkeypatch):
        tensors = {
            "a": torch.arange(6.0, device="cuda").view(2, 3),
            "b": torch.ones(4, dtype=torch.bfloat16, device="cuda"),
        }
        flat = flatten(tensors)
        assert flat.device.type == "cuda"
        monkeypatch.setattr(reductions, "reduce_tensor", reduce_tensor)
        payload = base64.b64decode(device_handles(flat, specs_of(tensors), reader_gpu=3))
        monkeypatch.setattr(reductions, "rebuild_cuda_tensor", rebuild_cuda_tensor)
        received = Engine(io.BytesIO(payload)).load()
        assert [name for name, _ in received] == ["a", "b"]
        assert len(allocations) == 1
        assert gpus == [3, 3]
        for name, tensor in received:
            assert torch.equal(tensor.cpu(), tensors[name].cpu())
        flat.zero_()  # handles, not copies: the engine reads the trainer's memory
        assert not any(tensor.cpu().any() for _, tensor in received)
    assert len(payload) < 5000
