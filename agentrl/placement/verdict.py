"""What a forecast of memory means: what does not fit, with its sum, and the nearest settings that do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentrl.config.machine import EngineName
from agentrl.config.resource_pools import pools_in_use
from agentrl.config.root import RunConfig
from agentrl.placement.cluster import GIB, Cluster, Machine
from agentrl.placement.engine_memory import engine_memory, smallest_gib
from agentrl.placement.engine_sizes import divisors, size_problems, tp_of
from agentrl.placement.forecast import GPUMemory, Phase, forecast
from agentrl.placement.host_memory import host_memory, policy_gib
from agentrl.placement.layout import RunPlacement
from agentrl.placement.lengths import Lengths
from agentrl.placement.model_shape import ModelShape, find_shape
from agentrl.placement.planner import plan

_AR = "actor_rollout_ref"
Change = tuple[str, object]


def memory_problems(config: RunConfig, placement: RunPlacement, lengths: Lengths) -> list[str]:
    """What does not fit into a plan: a sentence for each kind of GPU, for the engines, and for main memory."""
    shape = find_shape(config.actor_rollout_ref.model.path)
    if shape is None:
        return []
    config = with_engine(config, placement.engine)
    return [*_gpu_problems(config, placement, lengths, shape), *_host_problems(config, placement, lengths)]


def _gpu_problems(config: RunConfig, placement: RunPlacement, lengths: Lengths, shape: ModelShape) -> list[str]:
    if not placement.on_gpus:
        return []
    full = [gpu for gpu in forecast(config, placement, lengths) if not gpu.fits]
    problems = [_too_much(gpu, placement, config, shape) for gpu in full]
    problems += list(_cache_problems(config, placement, shape, lengths))
    if problems:
        problems[-1] += _remedy(config, placement, lengths)
    return problems


def _host_problems(config: RunConfig, placement: RunPlacement, lengths: Lengths) -> Iterator[str]:
    """The machine that lacks most main memory."""
    full = [host for host in host_memory(config, placement, lengths) if not host.fits]
    if not full:
        return
    host = max(full, key=lambda host: host.bytes)
    parts = " + ".join(f"{name} {_gib(size)}" for name, size in host.parts if size >= 0.05 * GIB)
    said = (
        f"memory: machine {host.machine} of {placement.cluster.source} has {_gib(host.capacity or 0)} GiB of main "
        f"memory, but the run needs {_gib(host.bytes)} there: {parts}"
    )
    changes: list[Change] = []
    for change in [] if placement.on_gpus else _small(config):
        changes.append(change)
        changed = changed_config(config, changes)
        if all(other.fits for other in host_memory(changed, plan(changed, placement.cluster), lengths)):
            yield f"{said}. It fits with {_told(changes)}"
            return
    offload = " or offload less (fsdp_config.param_offload, optimizer_offload, offload_policy)" * placement.on_gpus
    yield f"{said}: take machines with more main memory{offload or ', fewer ranks, a smaller model, or GPUs'}"


def _small(config: RunConfig) -> list[Change]:
    """Settings that make ranks on CPUs smaller."""
    changes: list[Change] = [
        (f"{_AR}.model.enable_gradient_checkpointing", True),
        (f"{_AR}.actor.ppo_max_token_len_per_gpu", min(4096, config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu)),
    ]
    return [*changes, ("trainer.n_gpus_per_node", 1)] if config.trainer.n_gpus_per_node > 1 else changes


def _too_much(gpu: GPUMemory, placement: RunPlacement, config: RunConfig, shape: ModelShape) -> str:
    phase, capacity = gpu.peak, (gpu.capacity or 0.0) / GIB
    said = f"memory: {phase.name} needs {_gib(phase.bytes)} GiB on each GPU of {gpu.what}, which has {capacity:.0f}: "
    said += _sum(phase)
    learns = next((pool for pool in pools_in_use(config) if pool.name == gpu.what and "actor" in pool.roles), None)
    if learns is not None and not config.actor_rollout_ref.model.adapts:
        total = 16 * shape.parameters / GIB
        over = f" / {learns.world_size} GPUs = {total / learns.world_size:.1f}" if learns.world_size > 1 else ""
        said += (
            f". The policy learns with 16 bytes a weight (4 weight + 4 gradient + 8 Adam): {_billions(shape)} "
            f"billion x 16 = {total:.1f} GiB{over}"
        )
    return said


def _sum(phase: Phase) -> str:
    """`weights 3.5 + gradients 3.5 + …`; what is below 0.05 GiB is left out."""
    return " + ".join(f"{name} {_gib(size)}" for name, size in phase.parts if size >= 0.05 * GIB)


def _cache_problems(config: RunConfig, placement: RunPlacement, shape: ModelShape, lengths: Lengths) -> Iterator[str]:
    """Whether an engine has room for a trajectory."""
    engine = engine_memory(config, placement, shape, lengths)
    if engine is None or engine.whole_at_once >= 1:
        return
    first = placement.engines[0]
    gib, tp = smallest_gib(placement) or 0.0, first.tp
    rollout = config.actor_rollout_ref.rollout
    weights = dict(engine.parts)["engine's weights"]
    yield (
        f"memory: an engine may take {rollout.gpu_memory_utilization:g} x {gib:g} = "
        f"{rollout.gpu_memory_utilization * gib:.1f} GiB of a GPU (rollout.gpu_memory_utilization), and its weights "
        f"take {_gib(weights)} GiB ({_billions(shape)} billion x 2 bytes / {tp}): the rest holds "
        f"{engine.cache_tokens:,.0f} tokens, but one trajectory has up to {lengths.longest:,}"
    )


def _remedy(config: RunConfig, placement: RunPlacement, lengths: Lengths) -> str:
    """The end of a sentence: the first settings of `_candidates` with which everything fits."""
    for changes in _candidates(config, placement):
        if _fits(config, placement.cluster, changes, lengths):
            needed = _needed(config, placement.cluster, changes, lengths)
            return f". It fits with {_told(needed)}{_of_the_host(needed, config, placement, lengths)}"
    machines = [placement.cluster.machines[rank.machine] for rank in placement.ranks]
    machine = min(machines, key=lambda machine: machine.gpu_gib or 0.0)
    if (found := _gpus_that_do(config, machine, lengths)) is not None:
        nodes, each, needed = found
        where = f"{each} GPUs" if nodes == 1 else f"{nodes} machines of {each} GPUs"
        return f". It fits on {where} like these with {_told(needed)}"
    return ". Nothing that agentrl tried makes it fit: take LoRA (model.lora_rank) or larger GPUs"


def _told(changes: list[Change]) -> str:
    """As they are written behind a command."""
    return " ".join(f"{key}={_yaml(value)}" for key, value in changes)


def _of_the_host(changes: list[Change], config: RunConfig, placement: RunPlacement, lengths: Lengths) -> str:
    """What `offload_policy` takes of the main memory of the machine with most of it."""
    changed = changed_config(config, changes)
    gib = policy_gib(changed, plan(changed, placement.cluster), lengths)
    return f" ({gib:.0f} GiB of main memory for it, and slow optimizer steps on the CPU)" if gib else ""


def _gentle(config: RunConfig) -> list[Change]:
    """Settings that need less memory, those that cost the least time first."""
    section = config.actor_rollout_ref
    changes: list[Change] = []
    if hasattr(section.rollout, "free_cache_engine"):
        changes.append((f"{_AR}.rollout.free_cache_engine", True))
    changes.append((f"{_AR}.model.enable_gradient_checkpointing", True))
    if config.needs_critic:
        changes.append(("critic.model.enable_gradient_checkpointing", True))
    changes.append((f"{_AR}.actor.ppo_max_token_len_per_gpu", 4096))
    for key, model in ((f"{_AR}.actor", section.model), ("critic", config.critic.model)):
        if model.adapts:  # the weights beside its adapter do not learn
            changes.append((f"{key}.fsdp_config.model_dtype", "bfloat16"))
    if "ref" in {role for pool in pools_in_use(config) for role in pool.roles}:
        changes.append((f"{_AR}.ref.fsdp_config.model_dtype", "bfloat16"))
        changes.append((f"{_AR}.ref.fsdp_config.param_offload", True))
    for key in (f"{_AR}.actor", *(["critic"] if config.needs_critic else [])):
        changes += [(f"{key}.fsdp_config.optimizer_offload", True), (f"{key}.fsdp_config.param_offload", True)]
    return changes


def _candidates(config: RunConfig, placement: RunPlacement) -> Iterator[list[Change]]:
    """Longer and longer lists of settings; then other shares and sizes of engines, all GPUs, and all on the host."""
    gentle, largest = _gentle(config), placement.cluster.largest
    for count in range(1, len(gentle) + 1):
        yield gentle[:count]
    shape = find_shape(config.actor_rollout_ref.model.path)
    own = tp_of(config)
    for share in (0.3, 0.4, 0.6, 0.7, 0.8):
        yield [*gentle, (f"{_AR}.rollout.gpu_memory_utilization", share)]
    for tp in divisors(largest):
        change: Change = (f"{_AR}.rollout.tensor_model_parallel_size", tp)
        changed = changed_config(config, [change])
        if tp > own and not size_problems(changed, shape, placement.cluster, placement.mode):
            for share in (0.3, 0.5, 0.7):
                yield [*gentle, change, (f"{_AR}.rollout.gpu_memory_utilization", share)]
    if config.trainer.n_gpus_per_node < largest and len(pools_in_use(config)) == 1 and placement.mode == "colocated":
        yield [*gentle, ("trainer.n_gpus_per_node", largest)]
    host: list[Change] = [(f"{_AR}.actor.fsdp_config.offload_policy", True)]
    if config.needs_critic:
        host.append(("critic.fsdp_config.offload_policy", True))
    yield [*gentle, *host]
    for share in (0.3, 0.5, 0.7):
        yield [*gentle, *host, (f"{_AR}.rollout.gpu_memory_utilization", share)]


def _needed(config: RunConfig, cluster: Cluster, changes: list[Change], lengths: Lengths) -> list[Change]:
    """The changes without those that it fits without too, the costly ones left out first."""
    needed = list(changes)
    for change in reversed(changes):
        fewer = [other for other in needed if other is not change]
        if _fits(config, cluster, fewer, lengths):
            needed = fewer
    return needed


def _gpus_that_do(config: RunConfig, machine: Machine, lengths: Lengths) -> tuple[int, int, list[Change]] | None:
    """The fewest machines and GPUs of this kind that hold the run, up to 64 x 8, and the settings that it needs."""
    for nodes, each in ((1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8), (16, 8), (32, 8), (64, 8)):
        cluster = Cluster((replace(machine, gpus=each),) * nodes)
        sizes: list[Change] = [("trainer.nnodes", nodes), ("trainer.n_gpus_per_node", each)]
        if config.trainer.backend == "local":
            sizes.insert(0, ("trainer.backend", "ray"))
        for tp in divisors(each):
            tried = [*sizes, (f"{_AR}.rollout.tensor_model_parallel_size", tp), *_gentle(config)]
            if _fits(config, cluster, tried, lengths):
                reached = [("ray_init.address", "auto")] if nodes > 1 and config.ray_init.address is None else []
                return nodes, each, [*reached, *_needed(config, cluster, tried, lengths)]
    return None


def _fits(config: RunConfig, cluster: Cluster, changes: Sequence[Change], lengths: Lengths) -> bool:
    changed = changed_config(config, changes)
    placement = plan(changed, cluster)
    shape = find_shape(changed.actor_rollout_ref.model.path)
    if placement.problems or shape is None or any(not gpu.fits for gpu in forecast(changed, placement, lengths)):
        return False
    if any(not host.fits for host in host_memory(changed, placement, lengths)):
        return False
    return not list(_cache_problems(changed, placement, shape, lengths))


def changed_config(config: RunConfig, changes: Sequence[Change]) -> RunConfig:
    """A copy of a run with other values; the run stays as it is."""
    copy = config.model_copy(deep=True)
    for key, value in changes:
        *sections, name = key.split(".")
        section: object = copy
        for part in sections:
            section = getattr(section, part)
        setattr(section, name, value)
    return copy


def with_engine(config: RunConfig, engine: EngineName) -> RunConfig:
    """The run with the engine that `auto` is for it."""
    auto = config.actor_rollout_ref.rollout.name == "auto"
    return changed_config(config, [(f"{_AR}.rollout.name", engine)]) if auto else config


def _billions(shape: ModelShape) -> str:
    return f"{shape.parameters / 1e9:.2f}"


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
