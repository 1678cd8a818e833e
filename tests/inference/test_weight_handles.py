"""Handles of GPU memory, as SGLang's scheduler and the embedded engine read them: on a simulated GPU, with made-up
allocations.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from simulated_cuda import simulated_cuda
from starlette.requests import Request
from starlette.responses import Response
from torch.multiprocessing import reductions

from agentrl.errors import UserInputError
from agentrl.inference.embedded.http import answer
from agentrl.inference.embedded.weight_updates import WeightUpdates
from agentrl.inference.weights.buckets import flatten, specs_of
from agentrl.inference.weights.handles import device_handles, read_handles

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


class Lent:
    """A bucket on a simulated GPU, and its handles for GPU 3."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allocations: dict[bytes, torch.Tensor] = {}
        self.gpus: list[int] = []
        self.tensors = {
            "a": torch.arange(6.0, device="cuda").view(2, 3),
            "b": torch.ones(4, dtype=torch.bfloat16, device="cuda"),
        }
        self.flat = flatten(self.tensors)
        assert self.flat.device.type == "cuda"
        monkeypatch.setattr(reductions, "reduce_tensor", self._reduce)
        self.payload = device_handles(self.flat, specs_of(self.tensors), reader_gpu=3)
        monkeypatch.setattr(reductions, "rebuild_cuda_tensor", self._rebuild)

    def _reduce(self, tensor: torch.Tensor) -> Any:
        """What torch does with a tensor on a GPU; `_share_cuda_` of a CPU storage does not exist."""
        storage = tensor._typed_storage()
        handle = b"allocation at %d" % storage._untyped_storage.data_ptr()
        self.allocations[handle] = torch.empty(0, dtype=torch.uint8).set_(storage._untyped_storage)
        size, counters = storage._untyped_storage.nbytes(), (False, b"", 0, b"", True)
        place = (type(tensor), tensor.size(), tensor.stride(), tensor.storage_offset(), type(storage), tensor.dtype)
        return reductions.rebuild_cuda_tensor, (*place, 0, handle, size, 0, *counters)

    def _rebuild(self, *arguments: Any) -> torch.Tensor:
        _, size, stride, offset, _, dtype, gpu, handle = arguments[:8]
        self.gpus.append(gpu)
        return self.allocations[handle].view(dtype).as_strided(size, stride, offset)


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lent]:
    with simulated_cuda(monkeypatch):
        yield Lent(monkeypatch)


def test_a_bucket_travels_as_handles_of_one_allocation(lent: Lent) -> None:
    payload = base64.b64decode(lent.payload)
    assert len(payload) < 5000
    received = Engine(io.BytesIO(payload)).load()
    assert [name for name, _ in received] == ["a", "b"]
    assert len(lent.allocations) == 1
    assert lent.gpus == [3, 3]
    for name, tensor in received:
        assert torch.equal(tensor.cpu(), lent.tensors[name].cpu())
    lent.flat.zero_()  # handles, not copies: the engine reads the trainer's memory
    assert not any(tensor.cpu().any() for _, tensor in received)


async def test_the_embedded_engine_reads_them_too(lent: Lent) -> None:
    loaded: dict[str, torch.Tensor] = {}

    class Model:
        def load_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
            loaded.update({name: tensor.cpu().clone() for name, tensor in tensors.items()})

    async def update(body: Any, load: Any) -> Response:
        load(Model())
        return answer({"success": True})

    async def refuse(request: Request) -> Response:
        return answer({"message": "other formats"}, 400)

    updates = WeightUpdates(torch.device("cuda"), update, {})
    body = {"serialized_named_tensors": [lent.payload], "flush_cache": False}
    assert b"must run between begin" in (await updates.from_memory(refuse, request_of(body))).body
    updates.is_open = True
    assert (await updates.from_memory(refuse, request_of(body))).status_code == 200
    assert list(loaded) == ["a", "b"]
    assert all(torch.equal(loaded[name], lent.tensors[name].cpu()) for name in loaded)
    two_ranks = {"serialized_named_tensors": [lent.payload] * 2}
    assert b"other formats" in (await updates.from_memory(refuse, request_of(two_ranks))).body
    on_cpu = WeightUpdates(torch.device("cpu"), update, {}, is_open=True)
    assert b"other formats" in (await on_cpu.from_memory(refuse, request_of(body))).body


def request_of(body: Any) -> Request:
    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    headers = [(b"content-type", b"application/json")]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


def encoded(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


class Evil:
    def __reduce__(self) -> Any:
        return print, ("code runs",)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (encoded(Evil()), "builtins.print is not a part of a handle"),
        (encoded([("a", torch.nn.Linear)]), "torch.nn.modules.linear.Linear is not a part of a handle"),
        (encoded(3), "cannot be read"),
        ("no base64", "cannot be read"),
        (base64.b64encode(b"no pickle").decode(), "cannot be read"),
        ("", "cannot be read"),
        (None, "wanted a text of handles in base64"),
    ],
)
def test_what_is_no_handle_is_refused(payload: object, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserInputError, match=why):
        read_handles(payload)
    assert "code runs" not in capsys.readouterr().out
