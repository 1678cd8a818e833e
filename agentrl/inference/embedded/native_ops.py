"""The operations of `ops` as C functions for float32 on CPUs: a decoding step takes about half the time.

`kernels.c` is compiled once per machine with the installed C compiler, which takes a second, and kept in the user's
cache folder. Without a compiler everything runs in torch, with the same numbers up to rounding.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from agentrl.inference.embedded.model_spec import ModelSpec
from agentrl.inference.embedded.ops import DirectRows, TorchOps

logger = logging.getLogger(__name__)
SOURCE = Path(__file__).with_name("kernels.c")
COMPILE = "-O3 -march=native -fno-math-errno -fno-trapping-math -fno-signed-zeros -fassociative-math -freciprocal-math"
MAX_GROUP, MAX_DIM = 16, 256
"""Sizes of the buffers in kernels.c."""
_Pointer, _Int, _Float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


def best_ops(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> TorchOps:
    """The C operations if they can run this model, else torch's."""
    fits = spec.num_heads // spec.num_kv_heads <= MAX_GROUP and spec.head_dim <= MAX_DIM and spec.head_dim % 2 == 0
    if device.type != "cpu" or dtype != torch.float32 or not fits:
        return TorchOps()
    library = load_library()
    return NativeOps(library) if library is not None else TorchOps()


class NativeOps(TorchOps):
    """The operations in C; tensors must be contiguous float32 on the CPU."""

    direct_tokens = 64
    wants_bias = False

    def __init__(self, library: ctypes.CDLL) -> None:
        self._rms_norm = library.rms_norm
        self._rms_norm.argtypes = [*[_Pointer] * 3, _Int, _Int, _Float]
        self._swiglu = library.swiglu
        self._swiglu.argtypes = [*[_Pointer] * 2, _Int, _Int]
        self._rotate_and_store = library.rotate_and_store
        self._rotate_and_store.argtypes = [*[_Pointer] * 6, *[_Int] * 5]
        self._attention = library.attention
        self._attention.argtypes = [*[_Pointer] * 6, *[_Int] * 6]
        self._sample = library.sample
        self._sample.argtypes = [*[_Pointer] * 6, *[_Int] * 2]

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `TorchOps`."""
        out = torch.empty_like(x)
        self._rms_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1], eps)
        return out

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """See `TorchOps`."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty((rows, width))
        self._swiglu(gate_up.data_ptr(), out.data_ptr(), rows, width)
        return out

    def rotate_and_store(
        self, qkv: Tensor, rotations: Tensor, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        """See `TorchOps`."""
        _, kv_heads, length, dim = keys.shape
        pointers = (t.data_ptr() for t in (qkv, rotations, slots, positions, keys, values))
        self._rotate_and_store(*pointers, qkv.shape[0], qkv.shape[1] - 2 * kv_heads, kv_heads, length, dim)

    def attention(
        self, qkv: Tensor, keys: Tensor, values: Tensor, slots: Tensor, positions: Tensor, rows: DirectRows
    ) -> Tensor:
        """See `TorchOps`."""
        _, kv_heads, length, dim = keys.shape
        heads = qkv.shape[1] - 2 * kv_heads
        out = qkv.new_empty((rows.count, heads * dim))
        pointers = (t.data_ptr() for t in (qkv, keys, values, slots, positions, out))
        self._attention(*pointers, rows.count, qkv.shape[1] * dim, heads, kv_heads, length, dim)
        return out

    def sample(self, logits: Tensor, temperature: Tensor, greedy: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """See `TorchOps`."""
        rows, vocab = logits.shape
        ids, log_probs = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
        pointers = (t.data_ptr() for t in (logits, temperature, greedy, u, ids, log_probs))
        self._sample(*pointers, rows, vocab)
        return ids, log_probs


@cache
def load_library() -> ctypes.CDLL | None:
    """Compile kernels.c, or reuse what an earlier process compiled; None if no compiler can."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        logger.info("no C compiler: the engine runs without its C operations")
        return None
    identity = SOURCE.read_bytes() + f"{COMPILE} {compiler} {_processor()} {torch.__version__}".encode()
    target = _cache_folder() / f"kernels-{hashlib.sha256(identity).hexdigest()[:16]}.so"
    try:
        if not target.is_file():
            _compile(compiler, target)
        return ctypes.CDLL(str(target))
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("the engine runs without its C operations, which is slower: %s", error)
        return None


def _compile(compiler: str, target: Path) -> None:
    """Compile to a temporary file and rename it, so that processes that start together do not disturb each other."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        half, whole = f"{scratch}/kernels.o", f"{scratch}/kernels.so"
        compile_it = [compiler, *COMPILE.split(), "-fopenmp", "-fPIC", "-c", str(SOURCE), "-o", half]
        subprocess.run(compile_it, check=True, capture_output=True, timeout=120)
        # Linked without OpenMP: its calls then bind to the library that torch loads, so both share one thread pool.
        subprocess.run([compiler, "-shared", half, "-lm", "-o", whole], check=True, capture_output=True, timeout=120)
        os.replace(whole, target)


def _processor() -> str:
    """Text that identifies the processor, on which `-march=native` depends."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = [line for line in info.read_text().splitlines() if line.startswith(("model name", "flags"))]
        return "".join(sorted(set(lines)))
    return platform.processor() + platform.machine()


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "agentrl"
