"""Gloo ranks on which models are spread over a mesh; started by `test_mesh.py`.

The ranks are forks of one process that has imported everything: a rank of its own takes seconds to start.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from agentrl.config.actor import FSDPConfig
from agentrl.config.root import RunConfig
from agentrl.config.sft import SFTConfig
from agentrl.data_proto import DataProto
from agentrl.single_controller import Dispatch, Placement, Worker
from agentrl.single_controller.dispatch import DispatchPlan, plan_call
from agentrl.testing.batches import random_batch
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker
from agentrl.workers.critic import CriticWorker
from agentrl.workers.fsdp_model import FSDPModel, _gathered
from agentrl.workers.mini_batches import ROW_ID
from agentrl.workers.reward_model import RewardModelWorker, conversation_batch
from agentrl.workers.sft import SFTWorker
from agentrl.workers.weight_source import WeightSource

BATCH = random_batch([(3, 5), (7, 1), (1, 9), (4, 4), (5, 0), (2, 12), (6, 3)], 261, seed=1)
BATCH.batch[ROW_ID] = torch.arange(7)
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"tie_word_embeddings": True},  # 261 ids: embeddings and head stay whole
    "qwen3": {"tie_word_embeddings": True, "vocab_size": 264},
    "llama": {"tie_word_embeddings": False, "vocab_size": 264},
    "qwen3_moe": {"tie_word_embeddings": False},
    "mistral": {"sliding_window": 4},
}
MESHES: dict[str, tuple[int, dict[str, int]]] = {
    "shard 2": (2, {}),
    "replicate 2": (2, {"fsdp_size": 1}),
    "sp 2": (2, {"ulysses_sequence_parallel_size": 2}),
    "tp 2": (2, {"tensor_parallel_size": 2}),
    "replicate 2 x shard 2": (4, {"fsdp_size": 2}),
    "shard 2 x sp 2": (4, {"ulysses_sequence_parallel_size": 2}),
    "replicate 2 x sp 2": (4, {"ulysses_sequence_parallel_size": 2, "fsdp_size": 2}),
    "sp 4": (4, {"ulysses_sequence_parallel_size": 4}),  # more ranks than heads of keys and values
    "shard 2 x tp 2": (4, {"tensor_parallel_size": 2}),
    "replicate 2 x tp 2": (4, {"tensor_parallel_size": 2, "fsdp_size": 1}),
    "sp 2 x tp 2": (4, {"ulysses_sequence_parallel_size": 2, "tensor_parallel_size": 2}),
}
"""By name, the number of ranks, and what `fsdp_config` says."""
ROLES = ("actor", "critic", "sft", "muon", "reward_model")
BUCKET_BYTES = 20_000
LORA = "lora"
"""An actor whose adapters learn."""
TALKS = conversation_batch([list(range(10, 10 + length)) for length in (3, 9, 1, 9, 30)])


def run_config(folder: Path, mesh: dict[str, int]) -> RunConfig:
    """Mini-batches of three rows, two epochs; micro-batches so small that ranks need different numbers."""
    config = RunConfig()
    config.actor_rollout_ref.model.path = str(folder)
    config.actor_rollout_ref.rollout.temperature = 0.8
    config.actor_rollout_ref.actor.entropy_coeff = 0.01
    for section in (config.actor_rollout_ref.actor, config.critic):
        section.fsdp_config = FSDPConfig(**mesh)  # type: ignore[arg-type]
        section.ppo_mini_batch_size, section.ppo_epochs, section.ppo_max_token_len_per_gpu = 3, 2, 16
        section.optim.lr, section.optim.betas = 1e-4, (0.0, 0.9)  # the first moment is the last gradient
    return config


@contextmanager
def joined(rank: int = 0, world: int = 1, meeting: str = "") -> Iterator[None]:
    """A process group of these ranks, who meet through the file `meeting`; it outlives the workers that join it."""
    member = Worker.place(Placement(rank, world), dist.FileStore(meeting, world) if world > 1 else HashStore())
    member.init_process_group("gloo", 600)
    try:
        yield
    finally:
        member.close()


@contextmanager
def started(role: str, folder: Path, mesh: dict[str, int]) -> Iterator[tuple[Any, int]]:
    """This rank of a model on a mesh, and how many ranks get the same rows."""
    place = Placement(dist.get_rank(), dist.get_world_size())
    if role == "reward_model":
        judged = RunConfig()
        section = judged.reward_model
        section.model.path, section.fsdp_config = f"{folder}_classifier", FSDPConfig(**mesh)  # type: ignore[arg-type]
        section.forward_max_token_len_per_gpu = 16
        worker: Any = RewardModelWorker.place(place, None, judged)
        copies = RewardModelWorker.copies_of(judged)
    elif role in ("sft", "muon"):
        sft = SFTConfig()
        sft.model.path, sft.model.fsdp_config = str(folder), FSDPConfig(**mesh)  # type: ignore[arg-type]
        sft.optim.name = "muon" if role == "muon" else "adamw"
        sft.data.max_token_len, sft.optim.lr, sft.optim.betas = 16, 1e-4, (0.0, 0.9)
        worker = SFTWorker.place(place, None, sft)
        copies = SFTWorker.copies_of(sft)
    else:
        config, kind = run_config(folder, mesh), CriticWorker if role == "critic" else ActorRolloutRefWorker
        config.actor_rollout_ref.model.lora_rank = 4 if role == LORA else 0
        worker, copies = kind.place(place, None, config), kind.copies_of(config)
    try:
        worker.init_model(10)
        if role == "critic":
            worker.model.net.score.weight.data.fill_(0.01)  # a head of zeros gives the model no gradient
        yield worker, copies
    finally:
        worker.close()


def plan_for(copies: int, batch: DataProto = BATCH) -> DispatchPlan:
    """Which rank gets which rows: as a `WorkerGroup` deals them."""
    return plan_call(Dispatch.DP_COMPUTE_PROTO, dist.get_world_size(), (batch,), {}, copies)


def learn(role: str, folder: Path, mesh: dict[str, int]) -> dict[str, Any]:
    """Two updates: metrics, this rank's values per token, and on rank 0 gradients and weights. A collective call."""
    with started(role, folder, mesh) as (worker, copies):
        if role == "reward_model":
            (rows,), _ = plan_for(copies, TALKS).calls[dist.get_rank()]
            scores = worker.compute_rm_score(rows)
            return {"metrics": [], "values": dict(scores.batch.items()), "summed": {}, "gradients": {}, "weights": {}}
        (rows,), _ = plan_for(copies).calls[dist.get_rank()]
        return updated(role, worker, rows)


def updated(role: str, worker: Any, rows: DataProto) -> dict[str, Any]:
    """What a worker shows after two updates on these rows."""
    methods = {
        **dict.fromkeys(("actor", LORA), ("compute_log_prob", "update_actor")),
        "critic": ("compute_values", "update_critic"),
        "sft": ("evaluate", "update"),
        "muon": ("evaluate", "update"),
    }
    look, update = (getattr(worker, name) for name in methods[role])
    metrics = [update(rows).meta_info["metrics"] for _ in range(2)]
    seen = look(rows)
    return {
        "metrics": [{k: v for k, v in part.items() if not k.startswith("perf/")} for part in metrics],
        "values": dict(seen.batch.items()),
        "summed": seen.meta_info.get("metrics", {}),
        **state_of(worker.model),
    }


def state_of(model: FSDPModel) -> dict[str, dict[str, torch.Tensor]]:
    """Whole gradients of the last step, and weights."""
    assert model.optimizer is not None
    moments = {name: value for name, value in model.optimizer.state_tensors().items() if name.startswith("exp_avg.")}
    gradients = {name: _gathered(value).clone() for name, value in moments.items()}
    return {"gradients": gradients, "weights": {k: v.clone() for k, v in model.full_weights().items()}}


def kept_buckets(role: str, folder: Path, mesh: dict[str, int]) -> dict[str, Any]:
    """Every rank keeps every n-th bucket of an actor: what it kept, and what each bucket holds. A collective call."""
    with started(LORA if role == "buckets_lora" else "actor", folder, mesh) as (worker, copies):
        if role == "buckets_lora":
            worker.update_actor(plan_for(copies).calls[dist.get_rank()][0][0])  # B starts at 0
        rank, world = dist.get_rank(), dist.get_world_size()
        source, dtype = WeightSource(worker.model, worker._lm), torch.bfloat16 if role == "buckets_bfloat16" else None
        buckets = list(source.buckets(BUCKET_BYTES, dtype, keep=lambda number: number % world == rank))
        return {
            "kept": {bucket.number: dict(bucket.tensors) for bucket in buckets if bucket.tensors},
            "sizes": [sum(spec.num_bytes for spec in bucket.specs) for bucket in buckets],
            "names": [[spec.name for spec in bucket.specs] for bucket in buckets],
            "units": [len(units) for units in source.plan(BUCKET_BYTES, dtype)],
            "merged": worker.model.full_weights(worker._lm),
        }


def run_rank(rank: int, world: int, models: str, output: str, jobs: Sequence[str]) -> None:
    """Join the other ranks, do the jobs, and write what was found."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for number, job in enumerate(jobs):
        with joined(
            rank, world, f"{output}.meeting{number}"
        ):  # for each job: else the threads of its mesh's groups stay
            found[job] = do(job, Path(models))
    torch.save(found, f"{output}.{rank}")


def do(job: str, models: Path) -> dict[str, Any]:
    """What a job of `main` finds on this rank. A collective call."""
    role, family, mesh = job.split("/")
    if role.startswith("buckets"):
        return kept_buckets(role, models / family, MESHES[mesh][1])
    if role in (*ROLES, LORA):
        return learn(role, models / family, MESHES[mesh][1])
    with started("actor", models / family, MESHES[mesh][1]) as (worker, copies):
        if role == "save":
            (rows,), _ = plan_for(copies).calls[dist.get_rank()]
            worker.update_actor(rows)
            worker.save_checkpoint(f"{models}/{mesh}")
        else:
            worker.load_checkpoint(f"{models}/by one")
        return state_of(worker.model)


def fork_ranks(world: int, run: Callable[[int], None]) -> None:
    """Call `run` with each rank in a fork of this process, and wait for all; exits with 1 where one failed."""
    for family in FAMILIES:  # transformers imports these late: each fork would, again
        import_module(f"transformers.models.{family}.modeling_{family}")
    ranks = []
    for rank in range(world):
        if (pid := os.fork()) == 0:
            try:
                run(rank)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        ranks.append(pid)
    states = [os.waitpid(pid, 0)[1] for pid in ranks]
    if any(states):
        sys.exit(1)


def by_mesh(jobs: Sequence[str]) -> list[list[str]]:
    """Jobs that may follow each other in the same processes.

    torch keeps what it derived for a mesh, names of process groups with it, and takes the columns of another mesh
    (the tensor-parallel pairs of `shard 2 x tp 2` and of `sp 2 x tp 2`) for the same.
    """
    meshes = {job.split("/")[2]: None for job in jobs}
    return [[job for job in jobs if job.split("/")[2] == mesh] for mesh in meshes]


def main() -> None:
    """Start ranks and wait for them: FOLDER_OF_MODELS WORLD OUTPUT JOB [JOB …].

    A job is `ROLE/FAMILY/MESH`, or `save/FAMILY/MESH` and `load/FAMILY/MESH` for checkpoints in the folder.
    """
    models, world, output, *jobs = sys.argv[1:]
    for number, own in enumerate(by_mesh(jobs)):
        fork_ranks(int(world), lambda rank: run_rank(rank, int(world), models, f"{output}{number}", own))  # noqa: B023


if __name__ == "__main__":
    main()
