"""Metrics of one training step: data, timings, throughput. Names follow verl's, so its dashboards work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentrl.data_proto import DataProto
from agentrl.rollout.report import mean_max_min
from agentrl.single_controller.named_range import named_range

Metrics = dict[str, float]
TOKEN_STAGES = ("gen", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
"""Stages whose time is also reported per token."""


class StageTimer:
    """Measures the stages of one step.

    Args:
        announce: called with the name of each stage as it begins.
    """

    def __init__(self, announce: Callable[[str], None] = lambda _stage: None) -> None:
        self.seconds: dict[str, float] = {}
        self._announce = announce
        self._began = time.perf_counter()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Add the time inside to `stage`."""
        self._announce(stage)
        began = time.perf_counter()
        try:
            with named_range(stage):
                yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - began

    def metrics(self) -> Metrics:
        """`timing_s/*`, with the whole step so far as `timing_s/step`."""
        return {
            **{f"timing_s/{stage}": seconds for stage, seconds in self.seconds.items()},
            "timing_s/step": time.perf_counter() - self._began,
        }


def reward_metrics(batch: DataProto) -> Metrics:
    """`critic/*` of a batch with scores, rewards and advantages, and values if the run has a critic.

    Only tokens that are trained on count: other values may replace numbers that were not finite.
    """
    mask = batch.batch["loss_mask"].bool()
    metrics = {
        **mean_max_min("critic/rewards", batch.batch["token_level_rewards"].sum(-1)),
        **mean_max_min("critic/advantages", batch.batch["advantages"][mask]),
        **mean_max_min("critic/returns", batch.batch["returns"][mask]),
    }
    if "values" in batch.batch:
        values, returns = batch.batch["values"][mask], batch.batch["returns"][mask]
        metrics |= mean_max_min("critic/values", values)
        variance = returns.var(correction=0) + 1e-5
        metrics["critic/vf_explained_var"] = float(1 - (returns - values).var(correction=0) / variance)
    return metrics


def rollout_batch_metrics(rollouts: DataProto, max_prompt_length: int) -> Metrics:
    """Metrics of a step's rollouts, before any of them is left out of the update."""
    if not len(rollouts):
        return {**rollouts.meta_info["metrics"]}
    sampled = rollouts.batch["response_mask"].bool()
    staleness = rollouts.meta_info["weight_version"] - rollouts.batch["weight_versions"][sampled]
    prompts = rollouts.batch["attention_mask"][:, : rollouts.batch["prompts"].shape[1]].sum(-1)
    return {
        **rollouts.meta_info["metrics"],
        "prompt_length/clip_ratio": float((prompts >= max_prompt_length).float().mean()),
        **mean_max_min("rollout/staleness", staleness),
        **mean_max_min("critic/score", rollouts.batch["rm_scores"].sum(-1)),
        "perf/total_num_tokens": float(rollouts.batch["attention_mask"].sum()),
    }


def timing_metrics(timer: StageTimer, metrics: Metrics, num_ranks: int) -> Metrics:
    """`timing_s/*`, `timing_per_token_ms/*`, `perf/time_per_step` and `perf/throughput`.

    Args:
        timer: of the step.
        metrics: of the step; `perf/total_num_tokens` counts prompt and response tokens.
        num_ranks: training ranks; the throughput is tokens per second and rank, as in verl.
    """
    timings, tokens = timer.metrics(), metrics.get("perf/total_num_tokens", 0.0)
    step = timings["timing_s/step"]
    per_token = {
        f"timing_per_token_ms/{stage}": timer.seconds[stage] * 1000 / tokens
        for stage in TOKEN_STAGES
        if stage in timer.seconds and tokens
    }
    return {**timings, **per_token, "perf/time_per_step": step, "perf/throughput": tokens / (step * num_ranks)}
