"""What an engine takes of a GPU: weights, KV cache, and what is left of it while it sleeps."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.config.engine_flags import most_cache_tokens
from agentrl.config.root import RunConfig
from agentrl.placement.cluster import GIB
from agentrl.placement.layout import RunPlacement
from agentrl.placement.lengths import Lengths
from agentrl.placement.model_shape import ModelShape

OVERHEAD = 2.0 * GIB
"""Of SGLang beside weights and cache: CUDA, its graphs, activations of a prefill step."""
ASLEEP = 1.5 * GIB
"""What is left of its process once weights and cache are released."""
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Of a weight, by `rollout.dtype`."""


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """One GPU of an engine, in bytes.

    Attributes:
        parts: of a rollout.
        asleep: outside it.
        cache_tokens: of all GPUs of the engine together.
        at_once: trajectories of the usual length that decode together.
        whole_at_once: of the longest.
    """

    parts: tuple[tuple[str, float], ...]
    asleep: float
    cache_tokens: float
    at_once: float
    whole_at_once: float

    @property
    def bytes(self) -> float:
        """In a rollout."""
        return sum(size for _, size in self.parts)


def smallest_gib(placement: RunPlacement) -> float | None:
    """Memory of the smallest GPU with an engine; None: there is no engine on GPUs, or their memory is not known."""
    machines = placement.cluster.machines
    sizes = [machines[engine.machine].gpu_gib for engine in placement.engines if engine.gpus]
    return min((gib for gib in sizes if gib is not None), default=None)


def engine_memory(
    config: RunConfig, placement: RunPlacement, shape: ModelShape, lengths: Lengths, gib: float | None = None
) -> EngineMemory | None:
    """The memory of an engine on one of its GPUs; None: there is none on GPUs, or their memory is not known.

    Args:
        config: the run.
        placement: its plan.
        shape: of the model.
        lengths: of trajectories.
        gib: memory of the GPU; None: of the smallest that has an engine.
    """
    first = next((engine for engine in placement.engines if engine.gpus), None)
    gib = smallest_gib(placement) if gib is None else gib
    if first is None or gib is None:
        return None
    rollout, tp = config.actor_rollout_ref.rollout, first.tp
    each = BYTES.get(rollout.dtype, 2)
    weights = shape.parameters * each / tp
    per_token = shape.kv_elements * each / min(tp, shape.kv_heads)
    most = float(rollout.max_num_seqs or "inf")
    if placement.engine in ("embedded", "hf"):  # a slot of the longest length for each request
        most = slots = rollout.max_num_seqs or rollout.embedded.max_running_requests
        longest = rollout.max_model_len or rollout.embedded.max_context_length or Lengths.most(config).longest
        cache = per_token * slots * longest
    else:  # vLLM's share holds everything, SGLang's weights and cache
        all_of_it = OVERHEAD if placement.engine == "vllm" else 0.0
        cache = rollout.gpu_memory_utilization * gib * GIB - weights - all_of_it
    if placement.engine == "sglang" and (limit := most_cache_tokens(config)) is not None:
        cache = min(cache, limit * per_token)
    parts = (("engine's weights", weights), ("KV cache", max(0.0, cache)), ("engine's process", OVERHEAD))
    total = sum(size for _, size in parts)
    tokens = max(0.0, cache) / per_token
    # An adapter is put on weights that stay where they are.
    asleep = ASLEEP + (weights if rollout.weight_sync == "adapter" else 0.0)
    asked = getattr(rollout, "free_cache_engine", False)
    sleeps = placement.mode == "colocated" if asked is None else bool(asked)
    return EngineMemory(
        parts,
        asleep if sleeps else total,
        tokens,
        min(most, tokens / lengths.usual),
        min(most, tokens / lengths.longest),
    )
