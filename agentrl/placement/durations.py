"""How long the parts of a step take on GPUs, as ranges: operations and bytes against a GPU's peak.

Operations are those of `workers/flops.py`: 6 per weight and token for an update (8 with gradient checkpointing, which
runs the forward pass twice), 2 for log-probs. Decoding reads the weights and the KV cache once for each token that the
requests of a batch get together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentrl.config.resource_pools import pool_of, roles_of
from agentrl.config.root import RunConfig
from agentrl.placement.engine_memory import engine_memory
from agentrl.placement.forecast import recomputes
from agentrl.placement.gpus import GPUKind, assumed
from agentrl.placement.layout import RunPlacement
from agentrl.placement.lengths import Lengths
from agentrl.placement.model_shape import ModelShape, find_shape

UPDATE, FORWARD, PREFILL = (0.25, 0.45), (0.3, 0.5), (0.3, 0.5)
"""Shares of the peak that passes reach, the lowest and the highest that is assumed."""
DECODE = (0.3, 0.6)
"""Share of the memory's bandwidth that decoding reaches."""
TOKEN_OVERHEAD_S = 0.004
"""Of a decode step beside reading: scheduling, sampling, small kernels."""
AT_ONCE = 256
"""Requests of a decode batch where neither `max_num_seqs` nor the cache is smaller."""


@dataclass(frozen=True, slots=True)
class Duration:
    """A part of a step, in seconds from the best to the worst case."""

    what: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step.

    Attributes:
        gpu: the kind of GPU that was assumed.
        parts: one after the other.
        tokens: of a step.
    """

    gpu: str
    parts: tuple[Duration, ...]
    tokens: float

    @property
    def low(self) -> float:
        """Of the whole step."""
        return sum(part.low for part in self.parts)

    @property
    def high(self) -> float:
        """Of the whole step."""
        return sum(part.high for part in self.parts)


def pass_operations(shape: ModelShape, tokens: float, length: float, per_weight: int) -> float:
    """Operations of passes over rows of one length: `per_weight` for each weight and token, plus causal attention."""
    return tokens * per_weight * (shape.multiplied + shape.layers * shape.q_width * length)


def step_time(config: RunConfig, placement: RunPlacement, lengths: Lengths) -> StepTime | None:
    """The parts of a step on GPUs; None: there are none, nothing is trained, or a kind or size is not known."""
    shape, found = find_shape(config.actor_rollout_ref.model.path), None
    if placement.on_gpus and placement.ranks and not config.trainer.val_only:
        machine = placement.cluster.machines[placement.ranks[0].machine]
        found = assumed(machine.gpu_name, machine.gpu_gib)
    if shape is None or found is None:
        return None
    name, gpu = found
    trajectories = config.data.rollout_batch_size * config.actor_rollout_ref.rollout.n
    parts = [*_rollout(config, placement, shape, lengths, gpu), *_passes(config, lengths, gpu)]
    return StepTime(name, tuple(parts), trajectories * lengths.usual)


def _rollout(
    config: RunConfig, placement: RunPlacement, shape: ModelShape, lengths: Lengths, gpu: GPUKind
) -> Iterator[Duration]:
    engine = engine_memory(config, placement, shape, lengths)
    if engine is None or not placement.engines or engine.at_once < 1:
        return
    trajectories, tp = config.data.rollout_batch_size * config.actor_rollout_ref.rollout.n, placement.engines[0].tp
    each = trajectories / len(placement.engines)
    in_flight = config.actor_rollout_ref.rollout.agent.max_in_flight / len(placement.engines)
    at_once = max(1.0, min(each, engine.at_once, in_flight, config.actor_rollout_ref.rollout.max_num_seqs or AT_ONCE))
    weights = shape.parameters * 2
    if shape.num_experts:  # a small batch does not reach every expert
        reached = 1 - (1 - shape.experts_per_token / shape.num_experts) ** at_once
        weights -= round(2 * shape.all_experts * (1 - reached))
    read = (weights + at_once * lengths.usual * shape.kv_elements * 2) / tp
    steps = lengths.usual_response * each / at_once
    prefill = pass_operations(shape, each * lengths.usual_prompt, lengths.usual_prompt, 2) / (gpu.flops * tp)
    low, high = (steps * (read / (gpu.bandwidth * share) + TOKEN_OVERHEAD_S) for share in reversed(DECODE))
    yield Duration("rollout without its tools", low + prefill / PREFILL[1], high + prefill / PREFILL[0])


def _passes(config: RunConfig, lengths: Lengths, gpu: GPUKind) -> Iterator[Duration]:
    policy, roles = config.actor_rollout_ref, roles_of(config)
    tokens = config.data.train_batch_size * policy.rollout.n * lengths.usual
    own, critic = policy.model.path, config.critic.model.path
    paths = {"actor": own, "ref": own, "critic": critic or own}
    shapes = {role: find_shape(path) for role, path in paths.items() if role in roles}

    def took(what: str, role: str, per_weight: int, share: tuple[float, float], times: int = 1) -> Iterator[Duration]:
        shape = shapes.get(role)
        if shape is not None:
            operations = times * pass_operations(shape, tokens, lengths.usual, per_weight)
            best = operations / (gpu.flops * pool_of(config, role).world_size)
            yield Duration(what, best / share[1], best / share[0])

    if config.needs_old_log_probs:
        yield from took("old log-probs", "actor", 2, FORWARD)
    yield from took("reference log-probs", "ref", 2, FORWARD)
    yield from took("values", "critic", 2, FORWARD)
    sections = {"update of the critic": ("critic", config.critic.model), "update": ("actor", policy.model)}
    epochs = {"critic": config.critic.ppo_epochs or policy.actor.ppo_epochs, "actor": policy.actor.ppo_epochs}
    for what, (role, section) in sections.items():
        if (shape := shapes.get(role)) is not None:
            yield from took(what, role, 8 if recomputes(section, shape) else 6, UPDATE, epochs[role])
