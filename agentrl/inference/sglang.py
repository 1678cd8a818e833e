"""Which engine a run uses, and the command line of each kind of server."""

from __future__ import annotations

import json
import shutil
import sys

from agentrl.config.engine_choice import CONTEXT_MARGIN, INSTALL_VLLM, has_package, vllm_installed
from agentrl.config.lora import LoraKeys
from agentrl.config.machine import EngineName, engine_name, sglang_installed, uses_cuda
from agentrl.config.rollout import RolloutConfig
from agentrl.config.root import RunConfig
from agentrl.config.shared_gpus import frees_engines
from agentrl.errors import ConfigError
from agentrl.hub import ADAPTER_CONFIG, adapter_folder
from agentrl.inference.vllm import render_flags, vllm_command


def resolve_engine(config: RunConfig) -> EngineName:
    """The engine that the run uses; see `engine_name`.

    Raises:
        ConfigError: the run would start sglang or vllm, which is not installed.
    """
    rollout, installed = config.actor_rollout_ref.rollout, sglang_installed()
    python = rollout.server.python
    if rollout.server.addresses is None and rollout.name in ("sglang", "vllm") and python is not None:
        if not has_package(python, rollout.name):
            found = shutil.which(python) is not None
            got = f"{python} has no {rollout.name}" if found else f"no program {python} is found"
            raise ConfigError(
                f"actor_rollout_ref.rollout.server.python: {got}: name the Python of an "
                f"environment in which `import {rollout.name}` works"
            )
    elif rollout.name == "vllm" and rollout.server.addresses is None and not vllm_installed():
        raise ConfigError(
            f"actor_rollout_ref.rollout.name: got vllm, which is not installed ({INSTALL_VLLM}); install it, use "
            "embedded, or name running servers in actor_rollout_ref.rollout.server.addresses"
        )
    elif rollout.name == "sglang" and rollout.server.addresses is None and not installed:
        raise ConfigError(
            "actor_rollout_ref.rollout.name: got sglang, which is not installed (pip install 'agentrl[sglang]'); "
            "install it, use embedded, or name running servers in actor_rollout_ref.rollout.server.addresses"
        )
    return engine_name(config, installed=installed)


def launch_command(config: RunConfig, index: int, host: str, port: int) -> list[str]:
    """The command that starts server number `index` of the run."""
    engine = resolve_engine(config)
    if engine == "sglang":
        return _sglang_command(config, index, host, port)
    if engine == "vllm":
        longest = config.actor_rollout_ref.rollout.max_model_len or context_length(config)
        return vllm_command(config, index, host, port, longest)
    return _embedded_command(config, index, host, port, runner=engine)


def _embedded_command(config: RunConfig, index: int, host: str, port: int, *, runner: str) -> list[str]:
    rollout = config.actor_rollout_ref.rollout
    embedded = rollout.embedded
    longest = rollout.max_model_len or embedded.max_context_length or context_length(config)
    chunk = rollout.max_num_batched_tokens or embedded.prefill_chunk
    options: dict[str, object | None] = {
        "model": config.actor_rollout_ref.model.path,
        "tokenizer-path": config.actor_rollout_ref.model.tokenizer_path,
        "host": host,
        "port": port,
        "max-running-requests": rollout.max_num_seqs or embedded.max_running_requests,
        "max-context-length": longest,
        "prefill-chunk": chunk if rollout.enable_chunked_prefill else max(chunk, longest),
        "threads": embedded.threads,
        "engines-here": _engines_of_a_machine(config),
        "dtype": engine_dtype(config),
        "device": "cuda" if uses_cuda(config) else "cpu",
        "seed": config.trainer.seed + index,
    }
    command = [sys.executable, "-m", "agentrl.inference.embedded"]
    for name, value in options.items():
        if value is not None:
            command += [f"--{name}", str(value)]
    if runner != "embedded":
        command += ["--runner", runner]
        command += ["--trust-remote-code"] if config.actor_rollout_ref.model.trust_remote_code else []
    return [*command, "--deterministic"] if config.trainer.deterministic else command


def _engines_of_a_machine(config: RunConfig) -> int:
    """Servers that share the cores of a machine: they are dealt over the machines of the run."""
    return -(-(config.actor_rollout_ref.rollout.server.launch or 1) // config.trainer.nnodes)


def engine_dtype(config: RunConfig) -> str:
    """The data type of a server's weights; auto is never passed on: SGLang would make float16 of a float32 folder."""
    dtype = config.actor_rollout_ref.rollout.dtype
    return dtype if dtype != "auto" else "bfloat16" if uses_cuda(config) else "float32"


def _sglang_command(config: RunConfig, index: int, host: str, port: int) -> list[str]:
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    server, gpus = rollout.server, rollout.tensor_model_parallel_size
    command = [server.python or sys.executable, "-m", "sglang.launch_server", "--model-path", model.path]
    command += ["--host", host, "--port", str(port)]
    command += ["--context-length", str((rollout.max_model_len or context_length(config)) + CONTEXT_MARGIN)]
    command += ["--random-seed", str(config.trainer.seed + index), "--dtype", engine_dtype(config)]
    if rollout.max_num_seqs:
        command += ["--max-running-requests", str(rollout.max_num_seqs)]
    command += _prefill_flags(rollout)
    if rollout.load_format != "auto":
        command += ["--load-format", rollout.load_format]
    if rollout.enforce_eager:
        command += ["--disable-cuda-graph"]
    if not rollout.enable_prefix_caching:
        command += ["--disable-radix-cache"]
    if model.tokenizer_path:
        command += ["--tokenizer-path", model.tokenizer_path]
    if model.trust_remote_code:
        command += ["--trust-remote-code"]
    if config.trainer.deterministic:
        command += ["--enable-deterministic-inference"]
    if config.trainer.prometheus_address is not None:  # it has no page of metrics by itself
        command += ["--enable-metrics"]
    if rollout.weight_sync == "adapter":
        command += _lora_flags(model)
    if frees_engines(config):
        command += ["--enable-memory-saver"]
    if not uses_cuda(config):
        command += _cpu_flags(rollout)
    if uses_cuda(config):
        command += ["--tp-size", str(gpus), "--mem-fraction-static", str(rollout.gpu_memory_utilization)]
    return [*command, *render_flags(rollout.engine_kwargs.sglang, negations=False), *server.args]


def _cpu_flags(rollout: RolloutConfig) -> list[str]:
    """What SGLang needs on a CPU, but for what the user says: by itself it wants AMX, and spins while idle."""
    wanted = {"--device": ["cpu"], "--attention-backend": ["torch_native"]}
    wanted |= {"--disable-overlap-schedule": [], "--sleep-on-idle": []}
    given = {*rollout.server.args, *(f"--{name.replace('_', '-')}" for name in rollout.engine_kwargs.sglang)}
    return [word for flag, values in wanted.items() if flag not in given for word in (flag, *values)]


def _lora_flags(keys: LoraKeys) -> list[str]:
    """Room for the adapter of the run, beside none, which health checks use."""
    rank, names = keys.lora_rank, keys.target_modules
    if keys.lora_adapter_path is not None:
        rank = json.loads((adapter_folder(keys.lora_adapter_path) / ADAPTER_CONFIG).read_text(encoding="utf-8"))["r"]
    listed = isinstance(names, list) and keys.lora_adapter_path is None
    layers = sorted({name.rpartition(".")[2] for name in names}) if listed else ["all"]
    room = ["--max-loras-per-batch", "2", "--max-lora-rank", str(rank)]
    return ["--enable-lora", *room, "--lora-target-modules", *layers]


def _prefill_flags(rollout: RolloutConfig) -> list[str]:
    """A limit of one prefill step; without chunks it counts whole prompts."""
    most = rollout.max_num_batched_tokens
    if not rollout.enable_chunked_prefill:
        return ["--chunked-prefill-size", "-1", *(["--max-prefill-tokens", str(most)] if most else [])]
    return ["--chunked-prefill-size", str(most)] if most else []


def context_length(config: RunConfig) -> int:
    """Most tokens of a trajectory: prompt and response."""
    rollout = config.actor_rollout_ref.rollout
    prompt = rollout.prompt_length or config.data.max_prompt_length
    return prompt + (rollout.response_length or config.data.max_response_length)
