"""All options of an embedded engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.config.engine_choice import CONTEXT_MARGIN

if TYPE_CHECKING:
    import torch

RUNNERS = ("embedded", "hf")
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """Options of one engine server."""

    model: str
    """Hugging Face folder: config.json, safetensors, tokenizer files."""
    tokenizer_path: str | None = None
    """Folder of the tokenizer; None: the model's."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 30000
    """Port to listen on."""
    max_running_requests: int = 128
    """Most requests that decode together."""
    max_context_length: int | None = None
    """Most tokens of prompt and answer together; None: the model's own limit, of which the last two stay unused."""
    prefill_chunk: int = 2048
    """Most prompt tokens of one step."""
    threads: int | None = None
    """CPU threads of the model; None: as many as its size makes worthwhile, one in deterministic mode."""
    engines_here: int = 1
    """Engines on this machine that generate at the same time: they share its cores."""
    dtype: str = "auto"
    """Type of weights and KV cache; auto: float32 on CPU, bfloat16 on CUDA."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, …; auto: CUDA if available."""
    deterministic: bool = False
    """A request's numbers do not depend on other requests: each runs alone, without prefix reuse."""
    seed: int = 0
    """Seed for requests without a `sampling_seed`."""
    weight_version: str = "default"
    """Name of the initial weights; `default`, as SGLang has it, is no version of a run."""
    kv_cache_gb: float | None = None
    """Memory for the KV cache in GB; None: a quarter of the free memory, on CUDA half of it."""
    native: bool = True
    """Use the C operations of `native_ops` if they can run the model; False: torch only."""
    runner: str = "embedded"
    """What computes: `embedded` (agentrl's own decoder) or `hf` (transformers' `generate`)."""
    trust_remote_code: bool = False
    """With runner `hf`: run model code that comes with the model folder."""
    tool_call_parser: str | None = None
    """Format in which chat completions find tool calls; None: they stay text."""
    die_with_parent: bool = False
    """End this process when its parent ends."""

    def context(self, positions: int) -> int:
        """The context length of the server, as SGLang counts it: `max_context_length` and what stays unused of it.

        Args:
            positions: what the model can take.
        """
        return positions if self.max_context_length is None else self.max_context_length + CONTEXT_MARGIN

    def torch_device(self) -> torch.device:
        """The device that `device` names."""
        import torch

        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    def torch_dtype(self) -> torch.dtype:
        """The type that `dtype` names."""
        import torch

        if self.dtype == "auto":
            return torch.float32 if self.torch_device().type == "cpu" else torch.bfloat16
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype
