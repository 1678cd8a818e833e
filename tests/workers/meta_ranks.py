"""Gloo ranks that start models on the meta device and, in the same process, whole; run by `test_meta_start.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mesh_ranks import MESHES, by_mesh, fork_ranks, joined, plan_for, started, state_of
from torch.distributed.tensor import DTensor

from agentrl.workers import hf_folder, loading, meta_start, tensor_files
from agentrl.workers.hf_folder import write_hf_folder

PIECE_BYTES = 4096
ALL_MESHES = {**MESHES, "shard 2": (2, {}), "shard 4": (4, {})}


@contextmanager
def started_whole() -> Iterator[None]:
    """Every rank loads the whole model before it is sharded."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise meta_start.CannotStartOnMeta("a test asks for it")

    given, loading.open_on_meta = loading.open_on_meta, refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        loading.open_on_meta = given


@contextmanager
def reads_counted() -> Iterator[list[int]]:
    """Bytes of each read from a file."""
    sizes: list[int] = []
    given = tensor_files.TensorFiles.read

    def read(self: tensor_files.TensorFiles, name: str, region: tensor_files.Region) -> torch.Tensor:
        piece = given(self, name, region)
        sizes.append(piece.numel() * piece.element_size())
        return piece

    tensor_files.TensorFiles.read = read  # type: ignore[method-assign]
    try:
        yield sizes
    finally:
        tensor_files.TensorFiles.read = given  # type: ignore[method-assign]


def parts_of(worker: Any) -> dict[str, torch.Tensor]:
    """What this rank holds: its part of each parameter, and buffers."""
    net = worker.model.net
    named = [*net.named_parameters(remove_duplicate=False), *net.named_buffers()]
    return {name: (t.to_local() if isinstance(t, DTensor) else t).detach().clone() for name, t in named}


def differences(role: str, folder: Path, mesh: dict[str, int]) -> dict[str, Any]:
    """Names that differ between the two ways to start, and the sizes of reads. A collective call."""
    with started_whole(), started(role, folder, mesh) as (worker, _):
        expected, random_state = parts_of(worker), torch.get_rng_state()
    with reads_counted() as sizes, started(role, folder, mesh) as (worker, _):
        got = parts_of(worker)
    odd = sorted(expected.keys() ^ got.keys())
    odd += [name for name in expected if name in got and not same(expected[name], got[name])]
    if not torch.equal(random_state, torch.get_rng_state()):
        odd.append("random state")
    return {"odd": odd, "reads": sizes}


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def save(folder: Path, mesh: dict[str, int], out: str) -> dict[str, Any]:
    """Write the model folder at once, and a checkpoint in the background while an update goes on. A collective call."""
    with started("actor", folder, mesh) as (worker, copies):
        write_hf_folder(f"{out}/at once", worker.model, worker._lm, worker.config.actor_rollout_ref.model)
        worker.save_checkpoint(f"{out}/behind", background=True)
        before = state_of(worker.model)
        worker.update_actor(plan_for(copies).calls[dist.get_rank()][0][0])
        worker.finish_checkpoint()
        assert worker.checkpoint_written()
        worker.load_checkpoint(f"{out}/behind")
        after = state_of(worker.model)
    return {
        "odd": [name for name, value in before["weights"].items() if not torch.equal(value, after["weights"][name])]
    }


def run_rank(rank: int, world: int, models: str, output: str, jobs: list[str]) -> None:
    """Join the other ranks, do the jobs, and write what was found."""
    torch.set_num_threads(1)
    tensor_files.PIECE_BYTES = PIECE_BYTES
    hf_folder.BUCKET_BYTES, hf_folder.FILE_BYTES = 2**13, 2**15
    found: dict[str, Any] = {}
    for number, job in enumerate(jobs):
        role, family, mesh = job.split("/")
        sizes = ALL_MESHES[mesh][1] if mesh else {}
        with joined(
            rank, world, f"{output}.meeting{number}"
        ):  # for each job: else the threads of its mesh's groups stay
            if role == "save":
                found[job] = save(Path(models, family), sizes, f"{models}/saved/{family} {mesh}")
            else:
                found[job] = differences(role, Path(models, family), sizes)
    torch.save(found, f"{output}.{rank}")


def world_of(job: str) -> int:
    """How many ranks a job has; one where it names no mesh."""
    mesh = job.split("/")[2]
    return ALL_MESHES[mesh][0] if mesh else 1


def main() -> None:
    """Start ranks, once for each mesh, and wait for them: FOLDER_OF_MODELS OUTPUT ROLE/FAMILY/MESH […]."""
    models, output, *jobs = sys.argv[1:]
    for number, own in enumerate(by_mesh(jobs)):
        world = world_of(own[0])
        fork_ranks(world, lambda rank: run_rank(rank, world, models, f"{output}{number}", own))  # noqa: B023


if __name__ == "__main__":
    main()
