"""The memory of every GPU in every phase of a step, before anything starts.

Phases of a GPU that ranks and an engine share::

    start       engine (weights, KV cache)          + what ranks load, before any of it is offloaded
    rollout     the same                            + what ranks hold meanwhile
    scores      the same                            + a forward pass of the reward model
    log-probs   the engine's rest, or all of it     + what ranks hold + one forward pass
    update      the same                            + gradients, activations, logits
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentrl.config.actor import FSDPConfig, LogProbSection
from agentrl.config.parallel import mesh_sizes
from agentrl.config.parallel_checks import sections
from agentrl.config.resource_pools import Pool, pools_in_use, roles_of
from agentrl.config.rollout import RolloutConfig
from agentrl.config.root import RunConfig
from agentrl.placement import memory
from agentrl.placement.cluster import GIB, Cluster
from agentrl.placement.engine_memory import EngineMemory, engine_memory
from agentrl.placement.layout import RunPlacement
from agentrl.placement.lengths import Lengths
from agentrl.placement.memory import Kept, Spread
from agentrl.placement.model_shape import ModelShape, find_shape

PhaseName = Literal["start", "rollout", "scores", "log-probs", "update"]
RANK_OVERHEAD = {True: 1.0 * GIB, False: 0.08 * GIB}
"""Of a rank besides its tensors, on GPUs (CUDA, NCCL, what the allocator does not give back) and on CPUs."""
GAPS = 0.06
"""What allocators hold beyond a rank's tensors, as a share of these: 0 to 0.12 were measured on CPUs."""
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase on one GPU.

    Attributes:
        name: of the phase.
        parts: bytes by what they are for; together they are its memory.
    """

    name: PhaseName
    parts: tuple[tuple[str, float], ...]

    @property
    def bytes(self) -> float:
        """All of it."""
        return sum(size for _, size in self.parts)


@dataclass(frozen=True, slots=True)
class GPUMemory:
    """Phases of GPUs that hold the same.

    Attributes:
        what: whose they are: a pool's, or the engines'.
        count: how many.
        capacity: bytes of each; None: not known, or they are processes on CPUs.
        phases: in the order of a step.
    """

    what: str
    count: int
    capacity: float | None
    phases: tuple[Phase, ...]

    @property
    def peak(self) -> Phase:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: phase.bytes)

    @property
    def fits(self) -> bool:
        """Whether the peak is below the capacity."""
        return self.capacity is None or self.peak.bytes <= self.capacity


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the run, as one rank of its pool has it."""

    role: str
    shape: ModelShape
    spread: Spread
    held: Kept
    learns: bool
    compute_bytes: int
    checkpointing: bool
    tokens: float
    """Most tokens of a micro-batch of an update on a rank."""
    positions: float
    """Most of them whose log-probs are computed."""
    pass_tokens: float
    """As `tokens`, of a pass without a gradient; 0: the run has none."""
    pass_positions: float
    """Most of those whose log-probs are computed."""
    param_offload: bool
    optimizer_offload: bool
    steps: int
    """Optimizer steps of an update; moments that are offloaded stay from the first one to its end."""
    on_host: float = 0.0
    """Bytes in main memory all the time (`offload_policy`), not counted in `held`."""

    @property
    def offloaded(self) -> float:
        """Bytes in main memory, some of them outside passes alone."""
        own = self.held.weights if self.param_offload else 0.0
        return self.on_host + own + (self.held.optimizer if self.optimizer_offload else 0.0)

    def resting(self) -> float:
        """Bytes between its passes."""
        kept = 0.0 if self.param_offload else self.held.weights
        return kept + (0.0 if self.optimizer_offload else self.held.optimizer)


def forecast(config: RunConfig, placement: RunPlacement, lengths: Lengths | None = None) -> list[GPUMemory]:
    """The memory of all GPUs of a plan, those that hold the same together; of ranks on CPUs, that of a process.

    Args:
        config: the run.
        placement: its plan.
        lengths: of its rows; None: the most that the configuration allows.

    Returns:
        Nothing, where the sizes of a model are not known.
    """
    shape = find_shape(config.actor_rollout_ref.model.path)
    if shape is None or not placement.ranks:
        return []
    lengths = lengths or Lengths.most(config)
    found = []
    for pool in pools_of_processes(config):
        shared = any(each.pool == pool.name for each in placement.engines)
        models = models_of(config, pool, lengths, on_gpus=placement.on_gpus)
        for gib, count in _by_size(placement, [rank.machine for rank in placement.ranks_of(pool.name)]).items():
            engine = engine_memory(config, placement, shape, lengths, gib) if shared else None
            phases = tuple(_phases(models, engine, placement.on_gpus, trains=not config.trainer.val_only))
            found.append(GPUMemory(pool.name, count, _capacity(gib), phases))
    own = [each.machine for each in placement.engines if each.pool is None for _ in each.gpus]
    for gib, count in _by_size(placement, own).items():
        engine = engine_memory(config, placement, shape, lengths, gib)
        if engine is not None:
            found.append(GPUMemory("engines", count, _capacity(gib), (Phase("rollout", engine.parts),)))
    return found


def pools_of_processes(config: RunConfig) -> list[Pool]:
    """The pools of a run; with `trainer.backend=local` one process has every role."""
    pools = pools_in_use(config)
    return [replace(pools[0], roles=tuple(roles_of(config)))] if config.trainer.backend == "local" else pools


def forecast_rank(config: RunConfig, cluster: Cluster) -> float:
    """The peak of one process on the CPU that holds every model of a run, over what Python and torch take."""
    from agentrl.placement.planner import plan

    (rank,) = forecast(config, plan(config, cluster))
    return rank.peak.bytes


def _by_size(placement: RunPlacement, machines: list[int]) -> Counter[float | None]:
    """How many of the GPUs on these machines, one entry for each GPU, have how many GiB; of processes on CPUs None."""
    return Counter(placement.cluster.machines[machine].gpu_gib if placement.on_gpus else None for machine in machines)


def _capacity(gib: float | None) -> float | None:
    return None if gib is None else gib * GIB


def models_of(config: RunConfig, pool: Pool, lengths: Lengths, *, on_gpus: bool) -> list[Model]:
    """The models of a pool; those whose sizes are not known are left out."""
    found = []
    for role in pool.roles:
        _, fsdp, _, section = sections(config)[role]
        shape = find_shape(section.path)
        if shape is not None:
            found.append(_model(config, pool, role, shape, fsdp, lengths, on_gpus=on_gpus))
    return found


def _model(
    config: RunConfig, pool: Pool, role: str, shape: ModelShape, fsdp: FSDPConfig, lengths: Lengths, *, on_gpus: bool
) -> Model:
    policy, section = config.actor_rollout_ref, sections(config)[role][3]
    learns = role in ("actor", "critic")
    spread = _spread(fsdp, pool.world_size)
    keys = policy.model if role == "actor" else config.critic.model
    adapter = memory.adapter_weights(shape, keys.lora_rank) if learns and keys.lora_rank else 0
    auto = "bfloat16" if on_gpus or fsdp.model_dtype == "bfloat16" else "float32"
    computed = DTYPE_BYTES[auto if fsdp.compute_dtype == "auto" else fsdp.compute_dtype]
    frozen = DTYPE_BYTES[fsdp.model_dtype]
    if not learns:  # kept as it is computed, if that is smaller
        frozen = min(frozen, computed)
    kept = memory.kept_by(shape, spread, learns=learns, frozen_bytes=frozen, adapter=adapter)
    on_host = on_gpus and bool(getattr(fsdp, "offload_policy", False))
    tokens = lengths.micro_batch(_limit(config, role), spread, _rows_of_rank(config, role, spread))
    batch = max(1, -(-config.data.train_batch_size * policy.rollout.n // spread.groups))
    passes = [lengths.micro_batch(limit, spread, batch) for limit in _pass_limits(config, role)]
    share = 0.0 if role in ("critic", "reward_model") else lengths.response_share
    if role in ("critic", "reward_model"):  # a value or a score in place of a head over the vocabulary
        shape = replace(shape, tied=True)
    return Model(
        role=role,
        shape=shape,
        spread=spread,
        held=Kept(0.0) if on_host else kept,
        learns=learns,
        compute_bytes=computed,
        checkpointing=learns and recomputes(section, shape),
        tokens=tokens,
        positions=tokens * share,
        pass_tokens=max(passes, default=0.0),
        pass_positions=max(passes, default=0.0) * share,
        param_offload=fsdp.param_offload and on_gpus,
        optimizer_offload=fsdp.optimizer_offload and on_gpus,
        steps=_steps(config, role),
        on_host=kept.weights + kept.gradients + kept.optimizer if on_host else 0.0,
    )


def recomputes(section: Any, shape: ModelShape) -> bool:
    """Whether a model that learns recomputes activations: as its section says, which may leave it to the size."""
    by_size = getattr(section, "recomputes_activations", None)
    return bool(section.enable_gradient_checkpointing if by_size is None else by_size(shape.parameters))


def _spread(fsdp: FSDPConfig, world: int) -> Spread:
    sizes, problems = mesh_sizes(fsdp, world)
    if problems:  # `check_parallel` says so
        return Spread(shard=world, groups=world)
    copies = sizes.sp * sizes.tp
    return Spread(sizes.shard * sizes.sp, sizes.sp, sizes.tp, world // copies, fsdp.reshard_after_forward)


def _limit(config: RunConfig, role: str) -> tuple[int | None, int | None]:
    """Most tokens and most rows of a micro-batch of a role; one of them is None."""
    policy = config.actor_rollout_ref
    if role == "ref":
        return _log_prob_limit(policy.ref)
    if role == "reward_model":
        dynamic, tokens = config.reward_model.use_dynamic_bsz, config.reward_model.forward_max_token_len_per_gpu
        rows = config.reward_model.micro_batch_size_per_gpu
    else:
        own = policy.actor if role == "actor" else config.critic
        dynamic, tokens, rows = own.use_dynamic_bsz, own.ppo_max_token_len_per_gpu, own.ppo_micro_batch_size_per_gpu
    return (tokens, None) if dynamic else (None, rows or 1)


def _pass_limits(config: RunConfig, role: str) -> list[tuple[int | None, int | None]]:
    """As `_limit`, of each kind of pass without a gradient that a role takes."""
    if role != "actor":
        return [_limit(config, role)]
    policy = config.actor_rollout_ref
    own = [_log_prob_limit(policy.rollout)] if config.needs_old_log_probs else []
    return [*own, *([_log_prob_limit(policy.ref)] if config.has_adapters_off else [])]


def _log_prob_limit(section: LogProbSection | RolloutConfig) -> tuple[int | None, int | None]:
    if section.log_prob_use_dynamic_bsz:
        return section.log_prob_max_token_len_per_gpu, None
    return None, section.log_prob_micro_batch_size_per_gpu or 1


def _rows_of_rank(config: RunConfig, role: str, spread: Spread) -> int:
    """Most rows of a mini-batch that a rank gets."""
    actor, n = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout.n
    prompts = actor.ppo_mini_batch_size
    if role == "critic" and config.critic.ppo_mini_batch_size is not None:
        prompts = config.critic.ppo_mini_batch_size
    return max(1, -(-prompts * n // spread.groups))


def _steps(config: RunConfig, role: str) -> int:
    """Optimizer steps of an update."""
    actor, critic = config.actor_rollout_ref.actor, config.critic
    size, epochs = actor.ppo_mini_batch_size, actor.ppo_epochs
    if role == "critic":
        size, epochs = critic.ppo_mini_batch_size or size, critic.ppo_epochs or epochs
    return -(-config.data.train_batch_size // size) * epochs


def _phases(models: list[Model], engine: EngineMemory | None, on_gpus: bool, *, trains: bool) -> Iterator[Phase]:
    """The phases of a GPU with these models; the one of the costliest model stands for all."""
    resting, overhead = sum(model.resting() for model in models), RANK_OVERHEAD[on_gpus] * len(models)
    idle = [("weights and optimizer of ranks", resting), ("processes", overhead)]
    asleep = [] if engine is None else [("engine", engine.asleep)]
    in_turns = engine is not None or not trains
    awake = [model for model in models if in_turns and model.role == "reward_model"]
    if in_turns:
        parts = () if engine is None else engine.parts
        yield Phase("start", (*parts, *_start_parts(models), ("processes", overhead)))
        yield Phase("rollout", (*parts, *idle))
        for model in awake:  # it scores what the engine rolls out, in the engine's turn
            yield Phase("scores", (*parts, *_with_gaps(_pass_parts(model, models)), ("processes", overhead)))
    if not trains:
        return
    passes = [_pass_parts(model, models) for model in models if model not in awake]
    if passes:
        yield Phase("log-probs", (*asleep, *_with_gaps(max(passes, key=_size)), ("processes", overhead)))
    updates = [_update_parts(model, models) for model in models if model.learns]
    if updates:
        yield Phase("update", (*asleep, *_with_gaps(max(updates, key=_size)), ("processes", overhead)))


def _with_gaps(parts: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Tensors, and what the allocator holds between them."""
    return [*parts, ("gaps between tensors", GAPS * _size(parts))]


def _size(parts: list[tuple[str, float]]) -> float:
    return sum(size for _, size in parts)


def _others(model: Model, models: list[Model]) -> float:
    return sum(other.resting() for other in models if other is not model)


def _start_parts(models: list[Model]) -> list[tuple[str, float]]:
    """All models at the same time: loaded, and looked at with a few tokens; only then parameters are offloaded."""
    moments = sum(model.held.optimizer for model in models if not model.optimizer_offload)
    gathered = sum(memory.gathered(model.shape, model.spread, model.compute_bytes) for model in models)
    return [
        ("weights", sum(model.held.weights for model in models)),
        ("optimizer", moments),
        ("gathered weights", gathered),
    ]


def _pass_parts(model: Model, models: list[Model]) -> list[tuple[str, float]]:
    """A forward pass without a gradient."""
    optimizer = 0.0 if model.optimizer_offload else model.held.optimizer
    return [
        ("weights", model.held.weights),
        ("optimizer", optimizer),
        ("other models", _others(model, models)),
        ("gathered weights", memory.gathered(model.shape, model.spread, model.compute_bytes)),
        ("activations", model.pass_tokens * memory.passing(model.shape, model.compute_bytes, model.spread.tp)),
        ("logits", memory.logits(model.shape, model.pass_positions, gradient=False)),
    ]


def _update_parts(model: Model, models: list[Model]) -> list[tuple[str, float]]:
    """Forward and backward pass of the last micro-batch, or the optimizer's step, whichever needs more."""
    held, shape, spread, each = model.held, model.shape, model.spread, model.compute_bytes
    base = [("weights", held.weights), ("gradients", held.gradients), ("other models", _others(model, models))]
    learns = held.gradients > 0.5 * held.weights  # and not only an adapter
    kept = memory.activations(shape, model.tokens, each, checkpointing=model.checkpointing, tp=spread.tp)
    on_the_way = memory.gradients_on_the_way(shape, spread, each) if learns else 0.0
    first = [
        ("gathered weights", memory.gathered(shape, spread, each)),
        ("activations", kept),
        ("logits", memory.logits(shape, model.positions, gradient=True)),
        ("gradients before they are sharded", on_the_way),
    ]
    last = [
        ("gathered weights", memory.gathered(shape, spread, each)),
        ("gradients before they are sharded", memory.gradients_at_the_end(shape, spread, each) if learns else 0.0),
    ]
    optimizer = [("optimizer", held.optimizer)]
    away = model.optimizer_offload and model.steps == 1
    passes = [*base, *([] if away else optimizer), *max(first, last, key=_size)]
    return max(passes, [*base, *optimizer], key=_size)
