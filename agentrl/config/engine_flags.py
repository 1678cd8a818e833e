"""Flags of engines that agentrl gives itself, with the key that each follows: `engine_kwargs` gives any other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.config.machine import uses_cuda
from agentrl.config.root import RunConfig

_MODEL = "actor_rollout_ref.model."
_ROLLOUT = "actor_rollout_ref.rollout."
_ONE_MACHINE = "each engine is on one machine: give it more of that machine's GPUs with "
_LORA = f"{_MODEL}lora_rank, target_modules or lora_adapter_path"

SGLANG_FLAGS: Mapping[str, str] = {
    "model-path": f"{_MODEL}path",
    "model": f"{_MODEL}path",
    "tokenizer-path": f"{_MODEL}tokenizer_path",
    "trust-remote-code": f"{_MODEL}trust_remote_code",
    "host": f"{_ROLLOUT}server.host",
    "port": f"{_ROLLOUT}server.port",
    "context-length": f"{_ROLLOUT}max_model_len",
    "random-seed": "trainer.seed",
    "dtype": f"{_ROLLOUT}dtype",
    "max-running-requests": f"{_ROLLOUT}max_num_seqs",
    "chunked-prefill-size": f"{_ROLLOUT}max_num_batched_tokens or enable_chunked_prefill",
    "max-prefill-tokens": f"{_ROLLOUT}max_num_batched_tokens with enable_chunked_prefill=false",
    "load-format": f"{_ROLLOUT}load_format",
    "disable-cuda-graph": f"{_ROLLOUT}enforce_eager",
    "disable-radix-cache": f"{_ROLLOUT}enable_prefix_caching",
    "enable-deterministic-inference": "trainer.deterministic",
    "enable-lora": _LORA,
    "max-loras-per-batch": _LORA,
    "max-lora-rank": _LORA,
    "lora-target-modules": _LORA,
    "lora-paths": _LORA,
    "device": "trainer.device",
}
"""Of SGLang, by name."""
SGLANG_GPU_FLAGS: Mapping[str, str] = {
    "tp-size": f"{_ROLLOUT}tensor_model_parallel_size",
    "tp": f"{_ROLLOUT}tensor_model_parallel_size",
    "tensor-parallel-size": f"{_ROLLOUT}tensor_model_parallel_size",
    "mem-fraction-static": f"{_ROLLOUT}gpu_memory_utilization",
}
"""Of SGLang on GPUs; on CPUs nothing gives them."""
_SGLANG_NEVER: Mapping[str, str] = {
    "base-gpu-id": "each engine sees GPUs of its own alone (CUDA_VISIBLE_DEVICES), which begin with 0",
    "dp-size": f"set {_ROLLOUT}server.launch for more engines: the run itself deals requests to them",
    "dp": f"set {_ROLLOUT}server.launch for more engines: the run itself deals requests to them",
    "data-parallel-size": f"set {_ROLLOUT}server.launch for more engines: the run itself deals requests to them",
    "nnodes": f"{_ONE_MACHINE}{_ROLLOUT}tensor_model_parallel_size",
    "node-rank": f"{_ONE_MACHINE}{_ROLLOUT}tensor_model_parallel_size",
    "dist-init-addr": f"{_ONE_MACHINE}{_ROLLOUT}tensor_model_parallel_size",
    "api-key": "the run's client sends none: keep the ports inside your network",
    "weight-version": "the run counts weight versions itself",
}
"""Of SGLang, flags that no run can have, with the reason."""
VLLM_FLAGS: Mapping[str, str] = {
    "model": f"{_MODEL}path",
    "tokenizer": f"{_MODEL}tokenizer_path",
    "trust-remote-code": f"{_MODEL}trust_remote_code",
    "host": f"{_ROLLOUT}server.host",
    "port": f"{_ROLLOUT}server.port",
    "max-model-len": f"{_ROLLOUT}max_model_len",
    "seed": "trainer.seed",
    "dtype": f"{_ROLLOUT}dtype",
    "load-format": f"{_ROLLOUT}load_format",
    "max-num-seqs": f"{_ROLLOUT}max_num_seqs",
    "max-num-batched-tokens": f"{_ROLLOUT}max_num_batched_tokens",
    "enable-chunked-prefill": f"{_ROLLOUT}enable_chunked_prefill",
    "enable-prefix-caching": f"{_ROLLOUT}enable_prefix_caching",
    "enforce-eager": f"{_ROLLOUT}enforce_eager",
}
"""Of vLLM, by name."""
VLLM_GPU_FLAGS: Mapping[str, str] = {
    "gpu-memory-utilization": f"{_ROLLOUT}gpu_memory_utilization",
    "tensor-parallel-size": f"{_ROLLOUT}tensor_model_parallel_size",
}
"""Of vLLM on GPUs."""
_TRAINING_NEEDS = "training needs the value that agentrl gives"
_VLLM_NEVER: Mapping[str, str] = {
    "logprobs-mode": _TRAINING_NEEDS,
    "generation-config": _TRAINING_NEEDS,
    "enable-scale-out": _TRAINING_NEEDS,
    "enable-prompt-tokens-details": _TRAINING_NEEDS,
    "data-parallel-size": _SGLANG_NEVER["dp-size"],
    "api-key": _SGLANG_NEVER["api-key"],
}
"""Of vLLM, flags that no run can have, with the reason."""

_PLACES = frozenset({"model-path", "model", "host", "port", "tp-size", "tp", "tensor-parallel-size"})
"""Flags that `server.args` may not overrule: the run would wait for a server elsewhere, or talk to another model."""


def check_engine_flags(config: RunConfig) -> Iterator[str]:
    """`engine_kwargs` gives no flag that another key gives, and `server.args` none that the run relies on."""
    given, key = config.actor_rollout_ref.rollout.engine_kwargs, f"{_ROLLOUT}engine_kwargs"
    tables = (
        ("sglang", given.sglang, SGLANG_FLAGS, SGLANG_GPU_FLAGS, _SGLANG_NEVER),
        ("vllm", given.vllm, VLLM_FLAGS, VLLM_GPU_FLAGS, _VLLM_NEVER),
    )
    for engine, flags, own, on_gpus, never in tables:
        for name in _given(flags):
            flag = name.replace("_", "-").removeprefix("no-")
            if flag in never:
                yield f"{key}.{engine}.{name}: cannot be given: {never[flag]}"
            elif flag in own or (flag in on_gpus and uses_cuda(config)):
                yield f"{key}.{engine}.{name}: agentrl gives this flag itself: set {own.get(flag) or on_gpus[flag]}"
    rollout = config.actor_rollout_ref.rollout
    _, _, own, on_gpus, never = tables[1] if rollout.name == "vllm" else tables[0]
    relied_on = {**own, **(on_gpus if uses_cuda(config) else {})}
    for argument in rollout.server.args:
        flag = argument.partition("=")[0]
        name = flag.removeprefix("--").replace("_", "-") if flag.startswith("--") else ""
        if name in never:
            yield f"{_ROLLOUT}server.args: got {flag}, but {never[name]}"
        elif name in _PLACES and name in relied_on:
            yield f"{_ROLLOUT}server.args: got {flag}, but the run relies on its own: set {relied_on[name]}"


def _given(flags: Mapping[str, Any]) -> Iterator[str]:
    """Names of flags; those that are null are left out of the command."""
    return (name for name, value in flags.items() if value is not None)
