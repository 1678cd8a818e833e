"""The sizes of the mesh (replicate, shard, sp, tp) that a `fsdp_config` asks for, and what does not fit."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.config.actor import FSDPConfig

SP, TP = "ulysses_sequence_parallel_size", "tensor_parallel_size"


@dataclass(frozen=True, slots=True)
class MeshSizes:
    """Ranks along each axis; their product is the number of ranks."""

    replicate: int
    shard: int
    sp: int
    tp: int

    def __str__(self) -> str:
        """`replicate 2 x shard 2 x tp 2`: axes of more than one rank."""
        axes = {"replicate": self.replicate, "shard": self.shard, "sp": self.sp, "tp": self.tp}
        return " x ".join(f"{name} {size}" for name, size in axes.items() if size > 1)


def mesh_sizes(config: FSDPConfig, world: int, key: str = "fsdp_config") -> tuple[MeshSizes, list[str]]:
    """The sizes for this many ranks, and problems; with problems the sizes mean nothing.

    With 8 ranks, sp 2 and tp 2, a parameter is sharded over 8 / 2 = 4 ranks; with `fsdp_size: 2` over two, twice.
    """
    sp, tp = config.ulysses_sequence_parallel_size, config.tensor_parallel_size
    if world % (sp * tp):
        asked = " * ".join(f"{name} ({size})" for name, size in ((SP, sp), (TP, tp)) if size > 1)
        product = f" = {sp * tp}" if min(sp, tp) > 1 else ""
        return MeshSizes(1, 1, sp, tp), [
            f"{key}: got {asked}{product}, but the run has {world} rank{'s' * (world > 1)}, which it does not divide: "
            f"wanted a divisor of {world}"
        ]
    most = world // tp
    size = most if config.fsdp_size in (-1, 0) else config.fsdp_size
    if most % size or size % sp:
        fits = [n for n in range(sp, most + 1, sp) if most % n == 0]
        of_rows = f", a multiple of {SP} ({sp})" if sp > 1 else ""
        return MeshSizes(1, 1, sp, tp), [
            f"{key}.fsdp_size: got {size}, wanted a divisor of the {most} ranks that hold a parameter{of_rows}: "
            f"{', '.join(map(str, fits))}, or -1 for all"
        ]
    return MeshSizes(most // size, size // sp, sp, tp), []
