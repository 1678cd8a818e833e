"""The machines of a cluster, as `placement.plan` sees them: their GPUs and how much memory each has."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from agentrl.config.trainer import MOST_MACHINES, MOST_RANKS
from agentrl.errors import ConfigError
from agentrl.placement.gpus import alike, usual_gib

GIB = 2**30
_PART = re.compile(r"(\d+)x(\d+)(?:x(\d+(?:\.\d+)?))?(?:@([\w-]+))?")
_WANTED = (
    "wanted MACHINESxGPUSxGIB, such as 4x8x80 or 1x1x24, MACHINESx0 for machines without GPUs, or several of them with "
    "a comma between; @NAME behind it names the GPU (2x8x141@H200, or 2x8@H200 with its usual memory)"
)
AS_ASKED = "the machines that the run asks for"
"""The source of a cluster that was made up for a run."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine.

    Attributes:
        gpus: number of GPUs; all are alike.
        gpu_gib: memory of each in GiB; None: not known.
        gpu_name: as `gpus.GPUS` has it, or as its maker calls it; None: not known.
        host_gib: main memory in GiB; None: not known.
    """

    gpus: int
    gpu_gib: float | None = None
    gpu_name: str | None = None
    host_gib: float | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines that a run may use.

    Attributes:
        machines: in the order in which they are numbered.
        source: what it was made from, for messages: `--cluster 4x8x80`, `the Ray cluster`, `this machine`.
        reached_by_ray: whether Ray runs on them already; False: a run needs `ray_init.address` for more than one.
    """

    machines: tuple[Machine, ...]
    source: str = "the cluster"
    reached_by_ray: bool = False

    @property
    def gpus(self) -> int:
        """Number of GPUs of all machines."""
        return sum(machine.gpus for machine in self.machines)

    @property
    def largest(self) -> int:
        """Most GPUs of a machine."""
        return max((machine.gpus for machine in self.machines), default=0)

    def __str__(self) -> str:
        """`4 machines with 8 GPUs of 80 GiB`; machines that follow each other and are alike are said once."""
        parts = [
            (one, len(list(alike))) for one, alike in groupby(replace(each, host_gib=None) for each in self.machines)
        ]
        return " and ".join(_sentence(machine, count) for machine, count in parts)

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """Read `4x8x80`: machines x GPUs x GiB of each GPU; `2x8x80,1x4x24`; `2x0`: machines without GPUs.

        Raises:
            ConfigError: it is written otherwise.
        """
        machines: list[Machine] = []
        for part in text.replace(" ", "").split(","):
            found = _PART.fullmatch(part)
            if found is None or not 1 <= int(found[1]) <= MOST_MACHINES or int(found[2]) > MOST_RANKS:
                raise ConfigError(f"--cluster: got '{text}', {_WANTED}")
            gpus, usual = int(found[2]), None if found[4] is None else usual_gib(found[4])
            if gpus and found[3] is None and usual is None:
                raise ConfigError(f"--cluster: got '{text}' without the memory of a GPU in GiB, {_WANTED}")
            memory = float(found[3] or usual or 0) if gpus else None
            if memory == 0:
                raise ConfigError(f"--cluster: got '{text}', a GPU with 0 GiB, {_WANTED}")
            machines += [Machine(gpus, memory, found[4] if gpus else None)] * int(found[1])
        return cls(tuple(machines), f"--cluster {text}")

    @classmethod
    def of_ray(cls, nodes: Iterable[Mapping[str, Any]], gpu: Machine | None = None) -> Cluster:
        """From what `ray.nodes()` says: resources of the machines that are alive.

        Args:
            nodes: of Ray.
            gpu: a machine with a GPU of the same kind, where one is known: Ray does not tell its memory.
        """
        machines = []
        for node in nodes:
            if not node.get("Alive", True):
                continue
            resources = node.get("Resources", {})
            count = int(resources.get("GPU", 0))
            memory = [float(resources[key]) for key in ("memory", "object_store_memory") if key in resources]
            name = next(
                (key.removeprefix("accelerator_type:") for key in resources if "accelerator_type:" in key), None
            )
            host = sum(memory) / GIB if memory else None  # what was free when Ray started
            like = gpu if gpu is not None and count else Machine(0)
            gib = like.gpu_gib  # measured: Ray calls both sizes of an A100 so
            if name is not None and not (gib and like.gpu_name and alike(name, like.gpu_name, gib)):
                gib = usual_gib(name) if count else None
            machines.append(Machine(count, gib, name or like.gpu_name, host))
        return cls(tuple(machines), "the Ray cluster", reached_by_ray=True)


def this_machine() -> Cluster:
    """The machine of this process, with the GPUs that torch sees."""
    import torch

    count = torch.cuda.device_count()
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    if not count:
        return Cluster((Machine(0, host_gib=host),), "this machine")
    try:
        properties = torch.cuda.get_device_properties(0)
        machine = Machine(count, properties.total_memory / GIB, properties.name, host)
    except (AssertionError, RuntimeError):  # a driver that counts GPUs, and a torch that cannot use them
        machine = Machine(count, host_gib=host)
    return Cluster((machine,), "this machine")


def as_asked(parts: Iterable[int], like: Machine | None = None) -> Cluster:
    """The smallest cluster with a machine for each of these numbers of GPUs: for plans of a run that lacks its own."""
    made = tuple(
        Machine(count, like.gpu_gib if like else None, like.gpu_name if like else None)
        for count, times in sorted(Counter(parts).items(), reverse=True)
        for _ in range(times)
    )
    return Cluster(made, AS_ASKED)


def _sentence(machine: Machine, count: int) -> str:
    machines = f"{count} machine{'s' * (count > 1)}"
    if not machine.gpus:
        return f"{machines} without GPUs"
    name = f"{machine.gpu_name} " if machine.gpu_name else ""
    memory = f" of {machine.gpu_gib:.0f} GiB" if machine.gpu_gib else ""
    return f"{machines} with {machine.gpus} {name}GPU{'s' * (machine.gpus > 1)}{memory}"
