"""The first steps of every training rank: process group, seeds, deterministic mode."""

from __future__ import annotations

import os

import torch

from agentrl.config.root import RunConfig
from agentrl.single_controller import Worker
from agentrl.workers.collectives import backend_for


def prepare_rank(worker: Worker, seed: int, *, deterministic: bool, timeout_s: int | None = None) -> None:
    """Join the other ranks, and make this rank's numbers as repeatable as `trainer` asks for."""
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    worker.init_process_group(backend_for(worker.device), timeout_s)
    torch.manual_seed(seed)


def prepare_rank_of_run(worker: Worker, config: RunConfig) -> None:
    """`prepare_rank` as a run of `agentrl train` asks for it."""
    trainer, timeout = config.trainer, config.actor_rollout_ref.nccl_timeout
    prepare_rank(worker, trainer.seed, deterministic=trainer.deterministic, timeout_s=timeout)


def longest_response(config: RunConfig) -> int:
    """Most response tokens that the run allows: a scale that does not change from batch to batch."""
    return config.actor_rollout_ref.rollout.response_length or config.data.max_response_length


def memory_metrics(device: torch.device) -> dict[str, float]:
    """Host memory of this process, and its peak GPU memory."""
    import psutil

    metrics = {"perf/cpu_memory_used_gb": psutil.Process().memory_info().rss / 2**30}
    if device.type == "cuda":
        metrics["perf/max_memory_allocated_gb"] = torch.cuda.max_memory_allocated(device) / 2**30
    return metrics
