"""Numbers of one training step: data, timings, throughput. Names follow verl's, so its dashboards work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import psutil
import torch

from agentrl.data_proto import DataProto
from agentrl.types import StopReason

Metrics = dict[str, float]
TOKEN_STAGES = ("gen", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
"""Stages whose time is also given per token."""


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
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - began

    def metrics(self) -> Metrics:
        """`timing_s/*`, with the whole step so far as `timing_s/step`."""
        return {
            **{f"timing_s/{stage}": seconds for stage, seconds in self.seconds.items()},
            "timing_s/step": time.perf_counter() - self._began,
        }


def spread(name: str, values: torch.Tensor | np.ndarray | Sequence[float]) -> Metrics:
    """`{name}/mean`, `/max` and `/min`; empty where there are no values."""
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    if not array.size:
        return {}
    return {f"{name}/mean": array.mean(), f"{name}/max": array.max(), f"{name}/min": array.min()}


def reward_metrics(batch: DataProto) -> Metrics:
    """`critic/*` of a batch that has scores, rewards and advantages; values where there is a critic."""
    mask = batch.batch["response_mask"].bool()
    metrics = {
        **spread("critic/score", batch.batch["token_level_scores"].sum(-1)),
        **spread("critic/rewards", batch.batch["token_level_rewards"].sum(-1)),
        **spread("critic/advantages", batch.batch["advantages"][mask]),
        **spread("critic/returns", batch.batch["returns"][mask]),
    }
    if "values" in batch.batch:
        values, returns = batch.batch["values"][mask], batch.batch["returns"][mask]
        metrics |= spread("critic/values", values)
        variance = returns.var(correction=0) + 1e-5
        metrics["critic/vf_explained_var"] = float(1 - (returns - values).var(correction=0) / variance)
    return metrics


def length_metrics(batch: DataProto, max_prompt_length: int) -> Metrics:
    """`response_length/*`, `prompt_length/*`, `num_turns/*`, `tool_call_counts/*`.

    `response_length/clip_ratio` is the share of trajectories that ended for want of tokens.
    """
    width = batch.batch["prompts"].shape[1]
    attention = batch.batch["attention_mask"]
    prompts, responses = attention[:, :width].sum(-1), attention[:, width:].sum(-1)
    cut = [reason == StopReason.LENGTH for reason in batch.non_tensor_batch["stop_reason"]]
    return {
        **spread("response_length", responses),
        "response_length/clip_ratio": float(np.mean(cut)),
        **spread("prompt_length", prompts),
        "prompt_length/clip_ratio": float((prompts >= max_prompt_length).float().mean()),
        **spread("num_turns", batch.non_tensor_batch["num_turns"].astype(np.float64)),
        **spread("tool_call_counts", batch.non_tensor_batch["num_tool_calls"].astype(np.float64)),
    }


def throughput_metrics(seconds: dict[str, float], step_seconds: float, num_tokens: int, num_ranks: int) -> Metrics:
    """`perf/*` and `timing_per_token_ms/*`.

    Args:
        seconds: seconds per stage.
        step_seconds: seconds of the whole step.
        num_tokens: prompt and response tokens of the batch.
        num_ranks: training ranks; `perf/throughput` is tokens per second and rank, as in verl.
    """
    metrics = {
        "perf/total_num_tokens": float(num_tokens),
        "perf/time_per_step": step_seconds,
        "perf/throughput": num_tokens / (step_seconds * num_ranks),
        "perf/cpu_memory_used_gb": psutil.virtual_memory().used / 2**30,
    }
    if torch.cuda.is_available():
        metrics["perf/max_memory_allocated_gb"] = torch.cuda.max_memory_allocated() / 2**30
    for stage in TOKEN_STAGES:
        if stage in seconds and num_tokens:
            metrics[f"timing_per_token_ms/{stage}"] = seconds[stage] * 1000 / num_tokens
    return metrics


def group_metrics(uids: Sequence[object], scores: Sequence[float]) -> Metrics:
    """`rollout/zero_variance_groups`: groups of two or more whose scores are all equal; `…_fraction` of all groups."""
    groups: dict[object, list[float]] = {}
    for uid, score in zip(uids, scores, strict=True):
        groups.setdefault(uid, []).append(score)
    flat = sum(len(members) > 1 and min(members) == max(members) for members in groups.values())
    return {
        "rollout/zero_variance_groups": float(flat),
        "rollout/zero_variance_fraction": flat / len(groups) if groups else 0.0,
    }
