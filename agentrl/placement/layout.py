"""What `placement.plan` answers: where each rank and each engine of a run is, or why it cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentrl.config.machine import EngineName
from agentrl.placement.cluster import Cluster

Mode = Literal["colocated", "split", "cpu", "given"]
"""How engines and ranks share GPUs: in turns; each has its own; there are none; the engines run already."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a training rank is.

    Attributes:
        pool: its pool.
        rank: its number in the pool.
        machine: its machine's place in `Cluster.machines`.
        part: which entry of the pool's `process_on_nodes` it belongs to, as Ray's placement groups are numbered.
        gpu: on that machine; None: it is a process on the CPU.
        roles: the models that it holds a part of.
    """

    pool: str
    rank: int
    machine: int
    part: int
    gpu: int | None
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """Where an engine is.

    Attributes:
        index: its number; seeds and log files are named by it.
        machine: its machine's place in `Cluster.machines`.
        gpus: on that machine, in the order of its tensor-parallel ranks; empty: it runs on the CPU.
        port: that it listens on; None: a free one, chosen on its machine.
        pool: the pool whose GPUs it shares; None: it has GPUs (or a CPU) of its own.
        ranks: the ranks of that pool on the same GPUs, in the order of `gpus`.
    """

    index: int
    machine: int
    gpus: tuple[int, ...]
    port: int | None = None
    pool: str | None = None
    ranks: tuple[int, ...] = ()

    @property
    def tp(self) -> int:
        """Its tensor-parallel size."""
        return max(1, len(self.gpus))


@dataclass(frozen=True, slots=True)
class RunPlacement:
    """Where a run's ranks and engines are.

    Attributes:
        cluster: what it was planned for.
        on_gpus: whether ranks and engines are on GPUs.
        mode: how they share them.
        engine: which engine is started.
        ranks: of all pools, by pool and number.
        engines: those that the run starts, by index.
        problems: why the run cannot work so, each with its arithmetic and the nearest thing that works.
        notes: what is good to know.
    """

    cluster: Cluster
    on_gpus: bool
    mode: Mode
    engine: EngineName
    ranks: tuple[RankPlace, ...]
    engines: tuple[EnginePlace, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def works(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.problems

    def ranks_of(self, pool: str) -> tuple[RankPlace, ...]:
        """The ranks of a pool."""
        return tuple(rank for rank in self.ranks if rank.pool == pool)
