"""Where a rank stands on the axes (replicate, shard, sp, tp), and the groups of ranks along them.

Eight ranks with `fsdp_size: 4`, `ulysses_sequence_parallel_size: 2` and `tensor_parallel_size: 2`::

    rank          0 1 2 3 4 5 6 7      `tp` is the fastest axis: neighbours hold parts of one layer
    tp            0 1 0 1 0 1 0 1
    sp            0 0 1 1 0 0 1 1      ranks 0 and 2 hold the two halves of one row, and so do 1 and 3
    rows          0 0 0 0 1 1 1 1      ranks 0 to 3 get the same rows: `copies` is sp * tp = 4
    parameters    shards 0 0 1 1 2 2 3 3 of the part that `tp` gives: a row's ranks hold different shards

`shard` counts the rows' ranks: a parameter lies on `shard * sp` ranks, whose gradients are added up. An axis of size 1
has no group and costs nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from agentrl.config.actor import FSDPConfig
from agentrl.config.parallel import mesh_sizes
from agentrl.errors import ConfigError
from agentrl.workers.sequence import SequenceRanks


@dataclass(frozen=True, slots=True)
class RankMesh:
    """The groups that this rank belongs to.

    Attributes:
        fsdp: what parameters are sharded over: one axis, or (replicate, shard).
        tp: the ranks that hold the parts of one layer; None: this rank holds all of it.
        sequence: the ranks that hold the parts of one row; None: this rank reads whole rows.
        copies: how many neighbouring ranks get the same rows.
    """

    fsdp: DeviceMesh
    tp: DeviceMesh | None
    sequence: SequenceRanks | None
    copies: int


def make_mesh(device: torch.device, config: FSDPConfig) -> RankMesh:
    """Build the mesh over all ranks of the default process group. A collective call.

    Raises:
        ConfigError: the sizes do not divide the number of ranks.
    """
    world = dist.get_world_size()
    sizes, problems = mesh_sizes(config, world)
    if problems:
        raise ConfigError(problems)
    axes = {"replicate": sizes.replicate, "shard": sizes.shard * sizes.sp, "tp": sizes.tp}
    kept = {name: size for name, size in axes.items() if size > 1 or name == "shard"}
    if len(kept) == 1:
        whole = fsdp = DeviceMesh(device.type, list(range(world)))
    else:
        whole = init_device_mesh(device.type, tuple(kept.values()), mesh_dim_names=tuple(kept))
        fsdp = whole[tuple(name for name in kept if name != "tp")]
    sequence = None
    if sizes.sp > 1:
        parts = init_device_mesh(
            device.type, (world // (sizes.sp * sizes.tp), sizes.sp, sizes.tp), mesh_dim_names=("rows", "sp", "tp")
        )
        sequence = SequenceRanks(parts["sp"].get_group())
    if sizes.tp > 1:  # torch tells once per kind that a sum over two axes takes two steps
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    return RankMesh(fsdp, whole["tp"] if sizes.tp > 1 else None, sequence, config.copies)
