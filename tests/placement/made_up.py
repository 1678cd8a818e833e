"""Made-up clusters, and the runs that are planned for them."""

from __future__ import annotations

import logging
from typing import Any

from agentrl.config import RunConfig, load_config
from agentrl.config.planned import planning_for
from agentrl.placement import Cluster, RunPlacement, plan

AR = "actor_rollout_ref"
ROLLOUT = f"{AR}.rollout"
SEVEN = "Qwen/Qwen2.5-7B-Instruct"


def run_of(cluster: str, model: str = SEVEN, **changes: Any) -> RunConfig:
    """A GRPO run with a reference on these machines; `changes` have `__` for dots and `R__` for the rollout."""
    named = {key.replace("R__", f"{ROLLOUT}.", 1).replace("__", "."): value for key, value in changes.items()}
    base = {
        "algorithm.adv_estimator": "grpo",
        f"{AR}.model.path": model,
        f"{AR}.model.enable_gradient_checkpointing": True,
        f"{AR}.actor.use_kl_loss": True,
        f"{ROLLOUT}.n": 8,
        f"{ROLLOUT}.name": "sglang",
        f"{ROLLOUT}.gpu_memory_utilization": 0.4,
        "data.train_files": "rows.parquet",
        "ray_init.address": "auto",
    }
    logging.disable(logging.WARNING)
    try:
        with planning_for(gpus=Cluster.parse(cluster).gpus > 0):
            return load_config({**base, **named})
    finally:
        logging.disable(logging.NOTSET)


def planned(cluster: str, model: str = SEVEN, **changes: Any) -> RunPlacement:
    """The plan of such a run."""
    return plan(run_of(cluster, model, **changes), Cluster.parse(cluster))
