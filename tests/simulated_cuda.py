"""A simulated GPU: code written for `cuda` runs on a CPU, with the rules of two memories.

Tensors stay in host memory, but each storage is labelled with the device that the code asked for. Python reads the
label (`tensor.device`), moves really copy, and an operation on tensors of two devices raises as on a real GPU::

    weight = torch.ones(3).to("cuda")            device(type='cuda', index=0)
    weight + torch.ones(3)                       RuntimeError: aten.add.Tensor got tensors on cuda:0 and cpu
    weight.cpu() + torch.ones(3)                 fine

`torch.cuda` answers as one idle GPU of Hopper's kind, nccl becomes gloo, and `varlen_attn` (a kernel of GPUs only) a
loop over the runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")
META = torch.device("meta")
MAY_MIX = ("copy_", "_foreach_copy_", "_to_copy", "index.Tensor", "c10d")
"""Operations that take tensors of both devices on a real GPU too (an index may be on the CPU)."""


class Labels:
    """Which storages are on the GPU. Weak references keep the addresses of freed storages from being reused."""

    def __init__(self) -> None:
        self._on_gpu: dict[int, StorageWeakRef] = {}
        self.operations = 0
        """Operations that ran on the GPU so far: a test that counts none did not simulate anything."""
        self.profiled: list[str] = []
        """What profilers were told: ranges, windows, histories of the memory."""

    def device(self, tensor: torch.Tensor) -> torch.device:
        """The label of a tensor's storage; models load through the meta device, which stays what it is."""
        if tensor.is_meta:
            return META
        return GPU if _storage(tensor)._cdata in self._on_gpu else CPU

    def put(self, tensors: Any, device: torch.device) -> None:
        """Label the storages of all tensors of a result."""
        for tensor in _tensors(tensors):
            storage = _storage(tensor)
            if device.type == "cpu":
                self._on_gpu.pop(storage._cdata, None)
            else:
                self._on_gpu[storage._cdata] = StorageWeakRef(storage)
        if len(self._on_gpu) > 10_000:
            self._on_gpu = {key: ref for key, ref in self._on_gpu.items() if not ref.expired()}


class _Operations(TorchDispatchMode):
    """Every operation, also those of backward passes: results are where the arguments are, which must be one place."""

    def __init__(self, labels: Labels) -> None:
        super().__init__()
        self.labels = labels

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor calls the operation on its local tensors, which then comes here
        inputs = _tensors((args, kwargs))
        devices = {self.labels.device(tensor) for tensor in inputs}
        if len(devices) > 1 and not any(name in str(func) for name in MAY_MIX):
            whole = [t for t in inputs if t.ndim or "fused" in str(func)]  # a number may come from the CPU
            if len({self.labels.device(tensor) for tensor in whole}) == 2:
                raise RuntimeError(f"{func} got tensors on cuda:0 and cpu")
        asked = _as_device((kwargs or {}).get("device"))
        result = func(*args, **{**(kwargs or {}), **({} if asked is None else {"device": CPU})})
        if GPU in devices or asked == GPU:  # what comes from C++ calls every device `cpu`
            self.labels.operations += 1
            known = {_storage(tensor)._cdata for tensor in inputs}
            self.labels.put([t for t in _tensors(result) if _storage(t)._cdata not in known], GPU)
        return result


class _Calls(TorchFunctionMode):
    """Every call from Python: devices are read from labels, and where a device is asked for, it becomes a label."""

    def __init__(self, labels: Labels) -> None:
        super().__init__()
        self.labels = labels

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.device:
            return func(*args, **kwargs)
        if func is torch.autograd.backward:
            with self:  # FSDP's hooks, which autograd calls, ask for devices too
                return _backward(*args, **kwargs)
        special = _SPECIAL.get(func)
        if special is not None:
            return special(self.labels, *args, **kwargs)
        kwargs.pop("pin_memory", None)
        asked = [device for leaf in _leaves((args, kwargs)) if (device := _as_device(leaf)) is not None]
        if func is torch.Tensor.to and isinstance(args[1] if len(args) > 1 else None, torch.Tensor):
            asked = [self.labels.device(args[1])]
        if not asked:
            return func(*args, **kwargs)
        args, kwargs = tree_map(lambda leaf: CPU if _as_device(leaf) is not None else leaf, (args, kwargs))
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and args and result is args[0] and self.labels.device(result) != asked[0]:
            result = result.clone()
        if func is not torch.Tensor.to or self.labels.device(result) != asked[0]:
            if _shares(result, args):
                result = result.clone()
            self.labels.put(result, asked[0])
        return result


def _move(device: torch.device) -> Any:
    def move(labels: Labels, tensor: torch.Tensor, *_args: Any, **_options: Any) -> torch.Tensor:
        if labels.device(tensor) == device:
            return tensor
        moved = tensor.clone()
        labels.put(moved, device)
        return moved

    return move


_SPECIAL: dict[Any, Any] = {
    torch.Tensor.device.__get__: lambda labels, tensor: labels.device(tensor),
    torch.Tensor.is_cuda.__get__: lambda labels, tensor: labels.device(tensor) == GPU,
    torch.Tensor.is_cpu.__get__: lambda labels, tensor: labels.device(tensor) == CPU,
    torch.Tensor.cpu: _move(CPU),
    torch.Tensor.cuda: _move(GPU),
    torch.Tensor.pin_memory: lambda labels, tensor, *_args: tensor,
    torch.Tensor.is_pinned: lambda labels, tensor, *_args: True,
    # transformers counts the tokens of experts in int32 on GPUs, which only their kernel takes.
    torch.histc: lambda labels, values, *args, **options: torch.histc(values.float(), *args, **options),
    torch.Tensor.record_stream: lambda labels, tensor, stream: None,
}


def _backward(tensors: torch.Tensor | tuple[torch.Tensor], **_options: Any) -> None:
    """`torch.autograd.backward` of a scalar."""
    (loss,) = (tensors,) if isinstance(tensors, torch.Tensor) else tensors
    engine, ones = torch.autograd.Variable._execution_engine, torch.ones_like(loss)
    engine.run_backward((loss,), (ones,), False, False, (), allow_unreachable=True, accumulate_grad=True)


class _Stream:
    """A stream or event on which everything is done already."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_options: self


@contextmanager
def simulated_cuda(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)) -> Iterator[Labels]:
    """A machine with one GPU, until the block ends.

    Args:
        monkeypatch: undoes what is replaced.
        capability: compute capability of the GPU; from (8, 0) on the variable-length kernel is used.
    """
    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "device_count": 1,
        "current_device": 0,
        "set_device": None,
        "synchronize": None,
        "get_device_capability": capability,
        "get_device_name": "NVIDIA H100 80GB HBM3",
        "get_device_properties": SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=2**31),
        "max_memory_allocated": 2**30,
        "mem_get_info": (2**30, 2**31),
        "memory_reserved": 0,
        "memory_allocated": 0,
        "empty_cache": None,
        "current_stream": _Stream(),
        "default_stream": _Stream(),
        "stream": nullcontext(),
        "manual_seed_all": None,
        "_lazy_init": None,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_args, _answer=answer, **_options: _answer)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device=None: torch.get_rng_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device=None: None)
    for name in ("Stream", "Event"):
        monkeypatch.setattr(torch.cuda, name, _Stream)
    join = dist.init_process_group
    monkeypatch.setattr(
        dist, "init_process_group", lambda backend, **options: join(backend.replace("nccl", "gloo"), **options)
    )
    monkeypatch.setattr(varlen, "varlen_attn", varlen_by_loop)
    # Layers that are computed again are compared by device too, which the saving of tensors, in C++, calls `cpu`.
    looks = {"default": lambda tensor: (tensor.shape, tensor.dtype)}
    monkeypatch.setattr(checkpoint, "_allowed_determinism_checks_to_fns", looks)
    labels = Labels()
    for module, name in (
        *((torch.cuda.nvtx, f"range_{end}") for end in ("push", "pop")),
        *((torch.cuda.profiler, end) for end in ("start", "stop")),
        *((torch.cuda.memory, f"_{name}") for name in ("record_memory_history", "dump_snapshot")),
    ):
        monkeypatch.setattr(module, name, _keeps(labels.profiled, name))
    with _Operations(labels), _Calls(labels):
        yield labels


def _keeps(calls: list[str], name: str) -> Any:
    def call(*args: Any, **options: Any) -> None:
        calls.append(" ".join([name, *map(str, args), *(f"{key}={value}" for key, value in options.items())]))
        if name == "_dump_snapshot":
            Path(args[0]).write_bytes(b"snapshot")

    return call


@contextmanager
def gpu_or_simulated(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)) -> Iterator[None]:
    """The machine's GPU, else a simulated one; either says that its compute capability is this one."""
    if torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        yield
        return
    with simulated_cuda(monkeypatch, capability) as labels:
        yield
        assert labels.operations > 100


def varlen_by_loop(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`torch.nn.attention.varlen.varlen_attn`, one run after the other: (N, heads, D), in bfloat16 or float16."""
    assert query.dtype in (torch.bfloat16, torch.float16), f"the kernel takes no {query.dtype}"
    assert query.device == key.device == value.device == cu_seq_q.device == cu_seq_k.device
    assert query.device.type == "cuda", f"the kernel runs on GPUs only, got tensors on {query.device}"
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert window_size[1] == 0, f"causal attention sees nothing to the right, got a window of {window_size}"
    outputs, ends = [], cu_seq_q.tolist()
    assert ends[-1] == len(query)
    assert max_q == max_k >= max(stop - start for start, stop in pairwise(ends))
    for start, stop in pairwise(ends):
        ages = torch.arange(stop - start, device=query.device)
        behind = ages[:, None] - ages
        seen = (behind >= 0) & ((behind <= window_size[0]) if window_size[0] >= 0 else True)
        run = [part[start:stop].transpose(0, 1)[None] for part in (query, key, value)]
        out = scaled_dot_product_attention(*run, attn_mask=seen, scale=scale, enable_gqa=enable_gqa)
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


def _storage(tensor: torch.Tensor) -> Any:
    while isinstance(inner := getattr(tensor, "_local_tensor", getattr(tensor, "elem", None)), torch.Tensor):
        tensor = inner
    return tensor.untyped_storage()


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _leaves(values) if isinstance(leaf, torch.Tensor)]


def _leaves(values: Any) -> Iterator[Any]:
    """As torch's own `tree_leaves`, which takes longer than most operations of a tiny model."""
    if isinstance(values, dict):
        values = tuple(values.values())
    if not isinstance(values, tuple | list):
        yield values
        return
    for value in values:
        yield from _leaves(value)


def _shares(result: Any, args: Iterable[Any]) -> bool:
    own = {_storage(tensor)._cdata for tensor in _tensors(args)}
    return isinstance(result, torch.Tensor) and _storage(result)._cdata in own


def _as_device(value: Any) -> torch.device | None:
    """The device that an argument names; None for anything else."""
    if isinstance(value, str) and value.split(":")[0] in ("cpu", "cuda"):
        value = torch.device(value)
    if not isinstance(value, torch.device) or value.type not in ("cpu", "cuda"):
        return None
    return GPU if value.type == "cuda" else CPU
