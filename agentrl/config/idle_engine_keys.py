"""Keys of engines that cannot act with the engine of the run; part of `idle_keys.IDLE_KEYS`."""

from __future__ import annotations

from agentrl.config.idle import Idle
from agentrl.config.machine import OWN_ENGINES, engine_name, uses_cuda
from agentrl.config.root import RunConfig
from agentrl.config.shared_gpus import frees_engines
from agentrl.config.weight_transport import IDLE_TRANSPORT_KEYS

_ROLLOUT = "actor_rollout_ref.rollout."


def _asks_to_free(run: RunConfig) -> bool:
    """Whether engines shall release their memory, and do not."""
    return bool(run.actor_rollout_ref.rollout.free_cache_engine) and not frees_engines(run)


IDLE_ENGINE_KEYS: tuple[Idle[RunConfig], ...] = (
    *IDLE_TRANSPORT_KEYS,
    Idle(
        (
            *(f"{_ROLLOUT}embedded.*", f"{_ROLLOUT}gpu_memory_utilization"),
            *(f"{_ROLLOUT}max_num_*", f"{_ROLLOUT}max_model_len", f"{_ROLLOUT}enable_*", f"{_ROLLOUT}dtype"),
            *(f"{_ROLLOUT}enforce_eager", f"{_ROLLOUT}load_format", f"{_ROLLOUT}placement", f"{_ROLLOUT}n_gpus"),
            *(f"{_ROLLOUT}server.{key}" for key in ("host", "start_timeout_s", "python")),
            *(f"{_ROLLOUT}engine_kwargs.*", f"{_ROLLOUT}free_cache_engine"),
        ),
        lambda run: bool(run.actor_rollout_ref.rollout.server.addresses),
        "rollout.server.addresses names running servers, so this run starts none",
    ),
    Idle(
        (f"{_ROLLOUT}embedded.*",),
        lambda run: engine_name(run) == "sglang",
        "the engine is SGLang: use rollout.max_num_seqs, max_model_len, max_num_batched_tokens or server.args",
    ),
    Idle(
        (f"{_ROLLOUT}embedded.*",),
        lambda run: engine_name(run) == "vllm",
        "the engine is vLLM: use rollout.max_num_seqs, max_model_len, max_num_batched_tokens or engine_kwargs.vllm",
    ),
    *(
        Idle(
            (f"{_ROLLOUT}engine_kwargs.{name}",),
            lambda run, name=name: engine_name(run) != name,  # type: ignore[misc]
            f"the engine is not {name}",
        )
        for name in ("vllm", "sglang")
    ),
    Idle(
        (f"{_ROLLOUT}enforce_eager",),
        lambda run: engine_name(run) == "vllm" and not uses_cuda(run),
        "on a CPU vLLM is started without graphs and compilation",
    ),
    Idle(
        (f"{_ROLLOUT}server.python",),
        lambda run: engine_name(run) in OWN_ENGINES,
        "the engine is part of agentrl and runs in its Python: it is a setting of SGLang and vLLM",
    ),
    Idle(
        (f"{_ROLLOUT}enable_chunked_prefill",),
        lambda run: engine_name(run) == "embedded" and _longest(run) <= _chunk(run),
        "a prefill step of the embedded engine takes the longest request whole",
    ),
    Idle(
        (
            *(f"{_ROLLOUT}enable_chunked_prefill", f"{_ROLLOUT}max_num_batched_tokens"),
            f"{_ROLLOUT}embedded.prefill_chunk",
        ),
        lambda run: engine_name(run) == "hf",
        "transformers' generate takes the prompts of a batch whole",
    ),
    Idle(
        (f"{_ROLLOUT}free_cache_engine",),
        lambda run: _asks_to_free(run) and not uses_cuda(run),
        "the engines run on the CPU, where only the embedded one releases its memory (SGLang ends when it is asked to)",
    ),
    Idle(
        (f"{_ROLLOUT}free_cache_engine",),
        _asks_to_free,
        "engines and ranks have GPUs of their own",
    ),
    *(
        Idle(
            (f"{_ROLLOUT}{key}",),
            lambda run, key=key, usual=usual, name=name: (  # type: ignore[misc]
                getattr(run.actor_rollout_ref.rollout, key) != usual and engine_name(run) == name
            ),
            f"the {name} engine {why}: it is a setting of SGLang and vLLM",
        )
        for name, prefixes in (("embedded", "always reuses prefixes"), ("hf", "reuses no prefixes"))
        for key, usual, why in (
            ("enforce_eager", False, "has no CUDA graphs"),
            ("load_format", "auto", "reads the model folder"),
            ("enable_prefix_caching", True, prefixes),
        )
    ),
    *(
        Idle(
            (f"{_ROLLOUT}gpu_memory_utilization", f"{_ROLLOUT}tensor_model_parallel_size"),
            lambda run, name=name: engine_name(run) == name,  # type: ignore[misc]
            f"the {name} engine takes what it needs of one device: it is a setting of SGLang and vLLM",
        )
        for name in OWN_ENGINES
    ),
    Idle(
        (
            *(f"{_ROLLOUT}gpu_memory_utilization", f"{_ROLLOUT}tensor_model_parallel_size"),
            *(f"{_ROLLOUT}placement", f"{_ROLLOUT}n_gpus"),
        ),
        lambda run: not uses_cuda(run),
        "the engines run on the CPU",
    ),
    Idle(
        (f"{_ROLLOUT}n_gpus",),
        lambda run: run.actor_rollout_ref.rollout.placement == "colocated",
        "rollout.placement is colocated: engines are on the GPUs of the actor's ranks",
    ),
    *(
        Idle(
            (f"{_ROLLOUT}embedded.{own}",),
            lambda run, key=key: getattr(run.actor_rollout_ref.rollout, key) is not None,  # type: ignore[misc]
            f"rollout.{key} is given",
        )
        for own, key in (
            ("max_running_requests", "max_num_seqs"),
            ("max_context_length", "max_model_len"),
            ("prefill_chunk", "max_num_batched_tokens"),
        )
    ),
)


def _longest(run: RunConfig) -> int:
    """Most tokens of a request."""
    rollout, data = run.actor_rollout_ref.rollout, run.data
    need = (rollout.prompt_length or data.max_prompt_length) + (rollout.response_length or data.max_response_length)
    return rollout.max_model_len or rollout.embedded.max_context_length or need


def _chunk(run: RunConfig) -> int:
    """Most prompt tokens of a prefill step of the embedded engine."""
    rollout = run.actor_rollout_ref.rollout
    return rollout.max_num_batched_tokens or rollout.embedded.prefill_chunk
