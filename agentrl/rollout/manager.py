"""`AgentLoopManager`: from samples to finished, scored and padded trajectories."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.chat.vision import MULTI_MODAL
from agentrl.config.root import RunConfig
from agentrl.data_proto import DataProto
from agentrl.inference.engine_load import EngineLoad, sum_of
from agentrl.rollout.batching import collate, join
from agentrl.rollout.greedy import BASELINE, GREEDY, baselines_of, first_of_groups, greedy_metrics
from agentrl.rollout.pools.local import LocalPool
from agentrl.rollout.pools.scheduling import Progress, WorkerPool, run_jobs, share_slots
from agentrl.rollout.records import ChunkResult, Job, LoopLag, RolloutRow, StepInfo
from agentrl.rollout.report import (
    check_failure_budget,
    failures_of,
    rollout_metrics,
    tell_refills,
)
from agentrl.rollout.setup import RolloutSetup
from agentrl.timeline import Timeline, current_trace
from agentrl.types import Sample

COLUMNS: dict[str, Callable[[RolloutRow], Any]] = {
    "row": lambda row: row.row,
    "num_turns": lambda row: row.num_turns,
    "stop_reason": lambda row: row.stop_reason.value,
    "score": lambda row: row.score,
    "messages": lambda row: row.facts.messages,
    "reward_extra_info": lambda row: row.reward_extra,
    "num_tool_calls": lambda row: row.num_tool_calls,
    "metrics": lambda row: row.metrics,
    "timeline": lambda row: row.timeline.records(),
    "extra_fields": lambda row: {k: v for k, v in row.facts.as_fields().items() if k != "messages"},
}
SAMPLE_COLUMNS: dict[str, Callable[[Sample], Any]] = {
    "data_source": lambda sample: sample.data_source,
    "ground_truth": lambda sample: sample.ground_truth,
    "extra_info": lambda sample: sample.extra_info,
}


class AgentLoopManager:
    """Runs agent loops over all workers of a run.

    Args:
        config: the run.
        addresses: the engines.
        backend: `ray` or `local`; None: `trainer.backend`.

    Raises:
        UserInputError: the tokenizer, a YAML or a plug-in cannot be used.
    """

    def __init__(self, config: RunConfig, addresses: Sequence[str], *, backend: str | None = None) -> None:
        self._config = config
        self._setup = RolloutSetup.load(config)
        self._batches = itertools.count(1)
        self.on_progress: Progress | None = None
        """Is told how many of how many trajectories of a batch have ended; None: nobody looks."""
        self._timelines: list[tuple[int, Timeline]] = []
        self._pool = self._make_pool(list(addresses), backend or config.trainer.backend)

    def check_rows(self, samples: Sequence[Sample]) -> None:
        """Refuse rows that name an agent loop, tool, interaction or score function that the run does not have.

        Raises:
            PluginError: lists every problem with its row and the nearest name.
        """
        self._setup.check_rows(samples)

    def generate_sequences(self, batch: DataProto) -> DataProto:
        """Roll out every row of a batch; blocks until all have ended.

        Args:
            batch: `sample` and `uid` columns (samples are already repeated n times, a group shares a uid); `meta_info`
                may hold `validate`, `global_step`, `weight_version` and `seeded`.

        Returns:
            The trajectories that did not fail and have something to train on (there may be none), in the order of the
            input, as `batching.collate` describes, with the
            columns of `COLUMNS` and `SAMPLE_COLUMNS` and `uid`; `row` is the row of the input. With `rollout.refill`
            failed ones are repeated first. `meta_info` gains `metrics` and `failures`. Where the run needs greedy
            rollouts, each prompt of a training batch has one more, which is no row but gives `greedy.BASELINE`; they
            are in `meta_info` (`greedy.GREEDY`) where a reward model has to score them first.

        Raises:
            PluginError: a row cannot be routed.
            FailureBudgetError: more trajectories failed than `rollout.max_failure_rate` allows, or all did.
        """
        samples: list[Sample] = list(batch.non_tensor_batch["sample"])
        uids = list(batch.non_tensor_batch["uid"])
        self.check_rows(samples)
        step = _step_info(batch, next(self._batches))
        with_greedy = self._config.needs_greedy_rollouts and not step.validate
        firsts = first_of_groups(uids) if with_greedy else []
        played = [*range(len(samples)), *firsts]  # samples 0 0 1 1 -> rows 0 1 2 3, and greedy ones 4 and 5 of 0 and 1
        jobs = _jobs([samples[row] for row in played], [uids[row] for row in played], len(samples))
        chunks = run_jobs(self._pool, jobs, step, self.on_progress)
        self._timelines += _timelines(chunks) if step.trace is not None else []
        done, lag = _merge(chunks)
        tell_refills(done)
        failures = failures_of(done, [uids[row] for row in played], [samples[row] for row in played])
        check_failure_budget(failures, len(done), self._config.actor_rollout_ref.rollout.max_failure_rate)
        rows, greedy = done[: len(samples)], done[len(samples) :]
        metrics = rollout_metrics(rows, lag) | (greedy_metrics(greedy) if with_greedy else {})
        meta = {**batch.meta_info, "metrics": metrics, "failures": failures}
        baselines = baselines_of(greedy, [uids[row] for row in firsts]) if with_greedy else None
        if with_greedy and self._config.reward_model.enable:
            alive = [row for row in greedy if not row.is_left_out]
            of_greedy = [samples[row] for row in played], [uids[row] for row in played]
            meta[GREEDY] = self._pack(alive, *of_greedy, {"metrics": {}, "failures": []}, None)
        return self._pack([row for row in rows if not row.is_left_out], samples, uids, meta, baselines)

    def join(self, parts: Sequence[DataProto]) -> DataProto:
        """Join the results of several `generate_sequences` of one step."""
        return parts[0] if len(parts) == 1 else join(parts, self._setup.pad_id)

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Use these engines from now on."""
        self._pool.set_addresses(addresses)

    def take_timelines(self) -> list[tuple[int, Timeline]]:
        """Worker and timeline of each trajectory that was traced, failed ones and earlier tries included, once."""
        taken, self._timelines = self._timelines, []
        return taken

    def engine_loads(self, timeout_s: float) -> dict[str, EngineLoad]:
        """What each engine does for all workers that answer in time; may be called in any thread."""
        return sum_of(self._pool.engine_loads(timeout_s))

    def shutdown(self) -> None:
        """End every trajectory and every worker. May be called twice."""
        self._pool.shutdown()

    def _make_pool(self, addresses: list[str], backend: str) -> WorkerPool:
        agent = self._config.actor_rollout_ref.rollout.agent
        if backend == "local":
            return LocalPool(self._setup, addresses, agent.max_in_flight)
        from agentrl.rollout.pools.ray_pool import RayPool

        return RayPool(self._config, addresses, share_slots(agent.max_in_flight, agent.num_workers))

    def _pack(
        self,
        rows: Sequence[RolloutRow],
        samples: Sequence[Sample],
        uids: Sequence[Any],
        meta: dict[str, Any],
        baselines: Mapping[Any, float] | None,
    ) -> DataProto:
        columns: dict[str, list[Any]] = {name: [get(row) for row in rows] for name, get in COLUMNS.items()}
        columns |= {name: [get(samples[row.row]) for row in rows] for name, get in SAMPLE_COLUMNS.items()}
        columns["uid"] = [uids[row.row] for row in rows]
        if self._setup.renderer.vision is not None:
            columns[MULTI_MODAL] = [row.pictures for row in rows]
        if baselines is not None:
            columns[BASELINE] = [baselines.get(uid, math.nan) for uid in columns["uid"]]
        return DataProto(collate(rows, self._setup.pad_id), columns, meta)


def _jobs(samples: Sequence[Sample], uids: Sequence[Any], first_greedy: int) -> list[Job]:
    """One job per row, numbered within its group; from `first_greedy` on, rows are greedy."""
    seen: Counter[Any] = Counter()
    jobs = []
    for row, (sample, uid) in enumerate(zip(samples, uids, strict=True)):
        jobs.append(Job(row, sample, seen[uid], greedy=row >= first_greedy))
        seen[uid] += 1
    return jobs


def _step_info(batch: DataProto, number: int) -> StepInfo:
    meta = batch.meta_info
    return StepInfo(
        global_step=int(meta.get("global_step", 0)),
        validate=bool(meta.get("validate", False)),
        weight_version=meta.get("weight_version"),
        batch=number,
        seeded=bool(meta.get("seeded", False)),
        trace=current_trace(),
    )


def _merge(chunks: Sequence[ChunkResult]) -> tuple[list[RolloutRow], LoopLag]:
    lag = LoopLag()
    for chunk in chunks:
        lag.merge(chunk.lag)
    return sorted((row for chunk in chunks for row in chunk.rows), key=lambda row: row.row), lag


def _timelines(chunks: Sequence[ChunkResult]) -> list[tuple[int, Timeline]]:
    each = ((chunk.worker, row) for chunk in chunks for row in chunk.rows)
    return [(worker, timeline) for worker, row in each for timeline in (*row.earlier_timelines, row.timeline)]
