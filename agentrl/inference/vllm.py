"""The command line of a vLLM server: token ids in and out, log-probs of what is sampled, endpoints for new weights."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib import resources
from typing import Any

from agentrl.config.machine import uses_cuda
from agentrl.config.root import RunConfig
from agentrl.config.shared_gpus import frees_engines
from agentrl.errors import ConfigError

CPU_CACHE_GIB = "2"
"""KV cache of a server on a CPU unless VLLM_CPU_KVCACHE_SPACE is set: vLLM itself would take a large part of memory."""


def vllm_command(config: RunConfig, index: int, host: str, port: int, longest: int) -> list[str]:
    """The command that starts server number `index` of the run.

    Args:
        config: the run.
        index: number of the server, for its seed.
        host: address to listen on.
        port: port to listen on.
        longest: most tokens of a request.
    """
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    cuda, chunk = uses_cuda(config), rollout.max_num_batched_tokens
    flags: dict[str, Any] = {
        "model": model.path,
        "tokenizer": model.tokenizer_path,
        "host": host,
        "port": port,
        "max_model_len": longest,
        "seed": config.trainer.seed + index,
        "dtype": ("bfloat16" if cuda else "float32") if rollout.dtype == "auto" else rollout.dtype,
        "load_format": rollout.load_format,
        "max_num_seqs": rollout.max_num_seqs,
        # Without chunks a prefill step takes a whole prompt, and vLLM wants room for the longest.
        "max_num_batched_tokens": chunk if rollout.enable_chunked_prefill else max(chunk or longest, longest),
        "enable_chunked_prefill": rollout.enable_chunked_prefill,
        "enable_prefix_caching": rollout.enable_prefix_caching,
        "enforce_eager": rollout.enforce_eager or not cuda or None,  # compiling takes minutes on a CPU
        "trust_remote_code": model.trust_remote_code or None,
        "gpu_memory_utilization": rollout.gpu_memory_utilization if cuda else None,
        "tensor_parallel_size": rollout.tensor_model_parallel_size if cuda else None,
        # Log-probs of the distribution that is sampled from, not of the model's logits before the temperature.
        "logprobs_mode": "processed_logprobs",
        # No sampling defaults of the model folder: a repetition penalty there would change what is sampled.
        "generation_config": "vllm",
        "enable_scale_out": True,  # token ids in, token ids out: /inference/v1/generate
        "enable_prompt_tokens_details": True,  # cached_tokens
        "uvicorn_log_level": "warning",
        "enable_sleep_mode": frees_engines(config) or None,
        "worker_extension_cls": None if cuda else "agentrl_vllm_worker.PresentHead",
    }
    python = rollout.server.python or sys.executable
    environment = [f"{name}={value}" for name, value in _environment(config).items()]
    command = ["env", *environment, python, "-m", "vllm.entrypoints.openai.api_server", *render_flags(flags)]
    return [*command, *render_flags(rollout.engine_kwargs.vllm), *rollout.server.args]


def render_flags(flags: Mapping[str, Any], *, negations: bool = True) -> list[str]:
    """Flags by name as a command line: `{"max_num_seqs": 8, "x": True}` is `--max-num-seqs 8 --x`.

    Args:
        flags: null leaves a flag out; a list gives several values; a mapping is written as JSON.
        negations: false is written `--no-…`, as vLLM has it; else such a flag is left out, as SGLang has it.

    Raises:
        ConfigError: a name that is no flag.
    """
    command: list[str] = []
    for name, value in flags.items():
        if not name or not name.replace("_", "").replace("-", "").isalnum():
            raise ConfigError(f"actor_rollout_ref.rollout.engine_kwargs: got '{name}', wanted the name of a flag")
        flag = name.replace("_", "-")
        if value is None or (value is False and not negations):
            continue
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list | tuple):
            command += [f"--{flag}", *map(str, value)]
        else:
            command += [f"--{flag}", json.dumps(value) if isinstance(value, Mapping) else str(value)]
    return command


def _environment(config: RunConfig) -> dict[str, str]:
    """Variables of a server; the user's own count."""
    wanted = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}  # pause, weights and versions need the former
    if not uses_cuda(config):
        wanted |= {"VLLM_CPU_KVCACHE_SPACE": CPU_CACHE_GIB, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        wanted = {name: os.environ.get(name, value) for name, value in wanted.items()}
        paths = [str(resources.files("agentrl.inference.vllm_worker")), os.environ.get("PYTHONPATH")]
        return wanted | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return wanted
