"""Flags of engines that agentrl gives itself, with the key that each follows: `engine_kwargs` gives any other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.config.engine_choice import CONTEXT_MARGIN
from agentrl.config.machine import uses_cuda
from agentrl.config.root import RunConfig
from agentrl.config.shared_gpus import frees_engines

_MODEL = "actor_rollout_ref.model."
_ROLLOUT = "actor_rollout_ref.rollout."
_ONE_MACHINE = "each engine is on one machine: give it more of that machine's GPUs with "
_MORE_GPUS = f"give an engine more GPUs with {_ROLLOUT}tensor_model_parallel_size alone"
_MORE_ENGINES = f"set {_ROLLOUT}server.launch for more engines: the run itself deals requests to them"
_OWN_GPUS = "each engine sees GPUs of its own alone (CUDA_VISIBLE_DEVICES), which begin with 0"
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
    "base-gpu-id": _OWN_GPUS,
    "gpu-id-step": _OWN_GPUS,
    "pp-size": _MORE_GPUS,
    "pp": _MORE_GPUS,
    "pipeline-parallel-size": _MORE_GPUS,
    "dp-size": _MORE_ENGINES,
    "dp": _MORE_ENGINES,
    "data-parallel-size": _MORE_ENGINES,
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
    "tp": f"{_ROLLOUT}tensor_model_parallel_size",
}
"""Of vLLM on GPUs."""
_CACHE = f"set {_ROLLOUT}gpu_memory_utilization, by which the memory of the run is planned"
_TRAINING_NEEDS = "training needs the value that agentrl gives"
_VLLM_NEVER: Mapping[str, str] = {
    "logprobs-mode": _TRAINING_NEEDS,
    "generation-config": _TRAINING_NEEDS,
    "enable-scale-out": _TRAINING_NEEDS,
    "enable-prompt-tokens-details": _TRAINING_NEEDS,
    "pipeline-parallel-size": _MORE_GPUS,
    "pp": _MORE_GPUS,
    "prefill-context-parallel-size": _MORE_GPUS,
    "pcp": _MORE_GPUS,
    "data-parallel-size": _MORE_ENGINES,
    "dp": _MORE_ENGINES,
    "nnodes": _SGLANG_NEVER["nnodes"],
    "node-rank": _SGLANG_NEVER["node-rank"],
    "kv-cache-memory-bytes": _CACHE,
    "num-gpu-blocks-override": _CACHE,
    "api-key": _SGLANG_NEVER["api-key"],
}
"""Of vLLM, flags that no run can have, with the reason."""

_SLEEP = frozenset({"enable-memory-saver", "enable-sleep-mode"})
"""Switches of servers that release their memory, of SGLang and of vLLM."""
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
        name = flag.lstrip("-").replace("_", "-") if flag.startswith("-") else ""  # vLLM has `-tp` too
        if name in never:
            yield f"{_ROLLOUT}server.args: got {flag}, but {never[name]}"
        elif name in _PLACES and name in relied_on:
            yield f"{_ROLLOUT}server.args: got {flag}, but the run relies on its own: set {relied_on[name]}"
    yield from _cache_problems(config)
    yield from _sleep_problems(config)


def most_cache_tokens(config: RunConfig) -> int | None:
    """The limit that a run sets for the KV cache of an SGLang server, in tokens; None: its memory is the limit.

    Raises:
        ValueError: the value is not a whole number.
    """
    flag, rollout = "max-total-tokens", config.actor_rollout_ref.rollout
    given = {name.replace("_", "-"): value for name, value in rollout.engine_kwargs.sglang.items()}.get(flag)
    words = rollout.server.args
    for place, word in enumerate(words):  # the last one counts
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == f"--{flag}":
            given = value if equals else " ".join(words[place + 1 : place + 2])
    return None if given is None else int(str(given))


def _cache_problems(config: RunConfig) -> Iterator[str]:
    """A cache that is given in tokens holds the longest trajectory."""
    rollout, key = config.actor_rollout_ref.rollout, f"{_ROLLOUT}engine_kwargs.sglang.max_total_tokens"
    prompt = rollout.prompt_length or config.data.max_prompt_length
    response = rollout.response_length or config.data.max_response_length
    need = prompt + response + CONTEXT_MARGIN
    if rollout.name == "vllm":
        return
    try:
        most = most_cache_tokens(config)
    except ValueError as error:
        yield f"{key}: wanted a whole number of tokens, or null ({error})"
        return
    if most is not None and most < need:
        yield (
            f"{key}: got {most}, but a trajectory has up to {prompt + response} tokens (prompt {prompt} + response "
            f"{response}), and SGLang leaves {CONTEXT_MARGIN} unused: wanted at least {need}"
        )


def _sleep_problems(config: RunConfig) -> Iterator[str]:
    """Engines that share GPUs release their memory, for which a server has a switch."""
    rollout = config.actor_rollout_ref.rollout
    kwargs = rollout.engine_kwargs
    given: list[tuple[str, str, object]] = [("server.args", word, True) for word in rollout.server.args]
    given += [(f"engine_kwargs.sglang.{name}", name, value) for name, value in kwargs.sglang.items()]
    given += [(f"engine_kwargs.vllm.{name}", name, value) for name, value in kwargs.vllm.items()]
    for key, name, value in given:
        flag = name.lstrip("-").replace("_", "-")
        off = flag.removeprefix("no-") in _SLEEP and bool(value) == flag.startswith("no-") and value is not None
        if off and frees_engines(config):
            yield (
                f"{_ROLLOUT}{key}: got {name if value is True else 'false'}, but engines release their memory while "
                f"ranks train: set {_ROLLOUT}free_cache_engine=false if they shall keep it"
            )


def _given(flags: Mapping[str, Any]) -> Iterator[str]:
    """Names of flags; those that are null are left out of the command."""
    return (name for name, value in flags.items() if value is not None)
