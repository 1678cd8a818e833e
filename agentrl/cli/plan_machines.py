"""The lines of a plan about machines: what is on which GPU, the memory of every phase, and the time of a step."""

from __future__ import annotations

from itertools import groupby

from agentrl.config import RunConfig
from agentrl.config.parallel_checks import sections
from agentrl.config.resource_pools import roles_of
from agentrl.placement.cluster import GIB
from agentrl.placement.durations import UPDATE, step_time
from agentrl.placement.engine_memory import engine_memory
from agentrl.placement.forecast import GPUMemory, Phase, forecast
from agentrl.placement.gpus import GPUS
from agentrl.placement.layout import RunPlacement
from agentrl.placement.lengths import Lengths
from agentrl.placement.model_shape import find_shape

PlanLine = tuple[str, str]
_TIGHT = 0.9
"""Share of a GPU above which a plan says that it is tight: forecasts are not exact."""
_SHOWN = 0.05 * GIB
"""What is smaller is not shown."""


def machine_lines(config: RunConfig, placement: RunPlacement, lengths: Lengths) -> list[PlanLine]:
    """A topic and a sentence for each machine, phase and part of a step; on CPUs only the memory of a rank."""
    shape = find_shape(config.actor_rollout_ref.model.path)
    notes = [("note", note) for note in placement.notes]
    if not placement.on_gpus:
        return [*_memory_of_processes(config, placement, lengths), *notes]
    lines = [("cluster", f"{placement.cluster} ({placement.cluster.source})"), *_machines(placement)]
    if shape is None:
        path = config.actor_rollout_ref.model.path
        return [
            *lines,
            (
                "memory",
                f"not known: '{path}' is no folder with a whole config.json, not in the hub's cache and not among "
                "known models",
            ),
            *notes,
        ]
    lines.append(("sizes", f"{shape} ({shape.source})"))
    lines += [line for gpu in forecast(config, placement, lengths) for line in _memory(gpu)]
    lines += _left_out(config)
    if (engine := engine_memory(config, placement, shape, lengths)) is not None:
        lines.append(
            (
                "KV cache",
                f"{engine.cache_tokens:,.0f} tokens in each engine: {engine.whole_at_once:,.0f} trajectories of "
                f"{lengths.longest:,} tokens at once, {engine.at_once:,.0f} of {lengths.usual:,.0f}",
            )
        )
    return [*lines, *_time(config, placement, lengths), *notes]


def _left_out(config: RunConfig) -> list[PlanLine]:
    """Models that the memory above lacks."""
    paths = {role: sections(config)[role][3].path for role in roles_of(config)}
    unknown = [(role, path) for role, path in paths.items() if find_shape(path) is None]
    return [
        ("memory", f"without the {role.replace('_', ' ')}: the sizes of '{path}' are not known")
        for role, path in unknown
    ]


def _memory_of_processes(config: RunConfig, placement: RunPlacement, lengths: Lengths) -> list[PlanLine]:
    """`memory: 1.2 GiB at most in each of 2 ranks (update)`."""
    found = []
    for process in forecast(config, placement, lengths):
        peak = process.peak
        each = "the rank" if process.count == 1 else f"each of {process.count} ranks"
        pool = "" if len({rank.pool for rank in placement.ranks}) == 1 else f" of {process.what}"
        found.append(("memory", f"about {_gib(peak.bytes)} GiB in {each}{pool} ({peak.name}), beside Python and torch"))
    return found


def _machines(placement: RunPlacement) -> list[PlanLine]:
    """What is on each machine; machines that follow each other and hold the same are one line."""
    on_each = [(number, _on_machine(placement, number)) for number in range(len(placement.cluster.machines))]
    lines = []
    for what, alike in groupby(on_each, key=lambda each: each[1]):
        numbers = [number for number, _ in alike]
        first, last = numbers[0], numbers[-1]
        lines.append((f"machine {first}" if first == last else f"machines {first}-{last}", what))
    return lines


def _on_machine(placement: RunPlacement, machine: int) -> str:
    """`GPUs 0-7: global_pool; engines on 0-1, 2-3, 4-5, 6-7`."""
    pools: dict[str, list[int]] = {}
    for rank in placement.ranks:
        if rank.machine == machine and rank.gpu is not None:
            pools.setdefault(rank.pool, []).append(rank.gpu)
    parts = [
        f"{'rank' if len(gpus) == 1 else 'ranks'} of {pool} on GPU{'s' * (len(gpus) > 1)} {_span(gpus)}"
        for pool, gpus in pools.items()
    ]
    engines = [_span(list(engine.gpus)) for engine in placement.engines if engine.machine == machine]
    if engines:
        parts.append(f"engine{'s' * (len(engines) > 1)} on {', '.join(engines)}")
    return "; ".join(parts) or "nothing"


def _span(gpus: list[int]) -> str:
    """`0-3`, `0,2`."""
    if len(gpus) > 1 and gpus == list(range(gpus[0], gpus[-1] + 1)):
        return f"{gpus[0]}-{gpus[-1]}"
    return ",".join(map(str, gpus))


def _memory(gpu: GPUMemory) -> list[PlanLine]:
    """A line for each phase."""
    of = "" if gpu.capacity is None else f" of {gpu.capacity / GIB:.0f}"
    whose = f"each of {gpu.count} GPUs" if gpu.count > 1 else "the GPU"
    return [
        (
            "memory",
            f"{phase.name}, {whose} of {gpu.what}: {_gib(phase.bytes)}{of} GiB{_tight(gpu, phase)} = {_sum(phase)}",
        )
        for phase in gpu.phases
    ]


def _tight(gpu: GPUMemory, phase: Phase) -> str:
    full = gpu.capacity is not None and phase.bytes > _TIGHT * gpu.capacity
    return f" (more than {_TIGHT:.0%}: tight)" if full and gpu.fits else ""


def _sum(phase: Phase) -> str:
    return " + ".join(f"{name} {_gib(size)}" for name, size in phase.parts if size >= _SHOWN)


def _time(config: RunConfig, placement: RunPlacement, lengths: Lengths) -> list[PlanLine]:
    found = step_time(config, placement, lengths)
    if found is None and config.trainer.val_only:
        return []
    if found is None:
        return [("time", f"not known: {_why_no_time(placement)}")]
    parts = ", ".join(f"{part.what} {_seconds(part.low)}-{_seconds(part.high)}" for part in found.parts)
    low, high = (f"{share:.0%}" for share in UPDATE)
    return [
        (
            "time",
            f"a step of {found.tokens / 1e6:.1f} million tokens: {_seconds(found.low)}-{_seconds(found.high)} s on "
            f"{found.gpu} (an update at {low} to {high} of its peak): {parts}; tools and scores not counted",
        )
    ]


def _why_no_time(placement: RunPlacement) -> str:
    """A GPU that nobody named, or one of which nothing is known."""
    names = dict.fromkeys(machine.gpu_name for machine in placement.cluster.machines if machine.gpu_name)
    if not names:
        return "name the GPU in --cluster, such as 1x8x80@H100"
    return f"agentrl knows no peak of {', '.join(names)}, but those of {', '.join(kind.strip() for kind in GPUS)}"


def _seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"
