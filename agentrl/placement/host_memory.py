"""Main memory of the machines of a plan: ranks and engines on CPUs, and what ranks on GPUs offload to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentrl.config.root import RunConfig
from agentrl.placement.cluster import GIB
from agentrl.placement.engine_memory import BYTES
from agentrl.placement.forecast import forecast, models_of, pools_of_processes
from agentrl.placement.layout import RunPlacement
from agentrl.placement.lengths import Lengths
from agentrl.placement.model_shape import find_shape

PROCESS = 0.3 * GIB
"""Of a process besides its tensors: Python and torch."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """One machine, in bytes; caches of engines on CPUs, which take what is free, are not counted.

    Attributes:
        machine: its place in `Cluster.machines`.
        capacity: its main memory; None: not known.
        parts: by what they are for.
    """

    machine: int
    capacity: float | None
    parts: tuple[tuple[str, float], ...]

    @property
    def bytes(self) -> float:
        """All of it."""
        return sum(size for _, size in self.parts)

    @property
    def fits(self) -> bool:
        """Whether the machine has that much."""
        return self.capacity is None or self.bytes <= self.capacity


def host_memory(config: RunConfig, placement: RunPlacement, lengths: Lengths) -> list[HostMemory]:
    """The main memory that a plan takes of each machine; nothing, where the sizes of the model are not known."""
    shape = find_shape(config.actor_rollout_ref.model.path)
    if shape is None:
        return []
    found = []
    for number, machine in enumerate(placement.cluster.machines):
        ranks = sum(rank.machine == number for rank in placement.ranks)
        engines = [each for each in placement.engines if each.machine == number]
        own = _offloaded(config, placement, lengths) if placement.on_gpus else _ranks(config, placement, lengths)
        parts = [(what, size) for place, what, size in own if place == number]
        if alone := [each for each in engines if not each.gpus]:
            # `auto` is float32 on a CPU
            each = shape.parameters * BYTES.get(config.actor_rollout_ref.rollout.dtype, 4)
            parts.append((f"weights of {_count(len(alone), 'engine')}", len(alone) * each))
        if processes := ranks + len(engines):
            parts.append(("Python and torch", processes * PROCESS))
        capacity = None if machine.host_gib is None else machine.host_gib * GIB
        found.append(HostMemory(number, capacity, tuple(parts)))
    return found


def policy_gib(config: RunConfig, placement: RunPlacement, lengths: Lengths) -> float:
    """GiB that `offload_policy` takes of the main memory of the machine with most of it."""
    on_each = [0.0] * len(placement.cluster.machines)
    for pool in pools_of_processes(config):
        each = sum(model.on_host for model in models_of(config, pool, lengths, on_gpus=placement.on_gpus))
        for rank in placement.ranks_of(pool.name):
            on_each[rank.machine] += each
    return max(on_each, default=0.0) / GIB


def _offloaded(config: RunConfig, placement: RunPlacement, lengths: Lengths) -> Iterator[tuple[int, str, float]]:
    """(machine, what, bytes) that ranks on GPUs offload."""
    for pool in pools_of_processes(config):
        each = sum(model.offloaded for model in models_of(config, pool, lengths, on_gpus=True))
        for machine, count in _by_machine(placement, pool.name):
            if each:
                yield machine, f"offloaded by {_count(count, 'rank')} of {pool.name}", count * each


def _ranks(config: RunConfig, placement: RunPlacement, lengths: Lengths) -> Iterator[tuple[int, str, float]]:
    """(machine, what, bytes) of ranks on CPUs: the costliest pool at its peak, while the others wait."""
    processes = forecast(config, placement, lengths)
    costliest = max(processes, key=lambda process: process.count * process.peak.bytes, default=None)
    for process in processes:
        phase = process.peak if process is costliest else min(process.phases, key=lambda phase: phase.bytes)
        for machine, count in _by_machine(placement, process.what):
            yield machine, f"{_count(count, 'rank')} of {process.what} ({phase.name})", count * phase.bytes


def _by_machine(placement: RunPlacement, pool: str) -> Iterator[tuple[int, int]]:
    """(machine, ranks of a pool on it)."""
    machines = [rank.machine for rank in placement.ranks_of(pool)]
    return ((machine, machines.count(machine)) for machine in sorted(set(machines)))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
