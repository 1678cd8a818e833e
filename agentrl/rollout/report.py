"""Metrics of one batch of rollouts, and the check of its failures against the budget."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl.errors import FailureBudgetError
from agentrl.rollout.records import LoopLag, RolloutRow
from agentrl.types import Sample, StopReason, mark_errors

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

Metrics = dict[str, float]
_SHOWN_CAUSES = 5
_CAUSE_CHARS = 300
_VARIES = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|(?<![\w:])[-+]?\d[\d.,e+-]*")
"""The parts of a message that differ from one trajectory to the next; not the line of a file, `score.py:3`."""


def rollout_metrics(rows: Sequence[RolloutRow], lag: LoopLag) -> Metrics:
    """Metrics of a batch: failure rates over all trajectories, the rest over those that did not fail.

    Args:
        rows: every trajectory of the batch.
        lag: how late the workers' event loops woke up.
    """
    alive = [row for row in rows if row.error is None]
    reasons = Counter(row.stop_reason for row in rows)
    calls = np.array([row.metrics.get("num_tool_calls", 0.0) for row in alive])
    errors = sum(row.metrics.get("num_tool_errors", 0.0) for row in alive)
    metrics: Metrics = {f"rollout/stop_reason/{reason}": reasons[reason] / len(rows) for reason in StopReason}
    metrics["rollout/env_error_rate"] = (len(rows) - len(alive)) / len(rows)
    metrics["rollout/untrainable"] = float(sum(row.is_untrainable for row in rows))
    metrics["rollout/refilled"] = float(sum(bool(row.earlier_errors) for row in alive))
    held = [seconds for row in rows if (seconds := row.metrics.get("held", 0.0))]
    metrics["rollout/held_back"] = float(len(held))
    metrics["rollout/outage_s"] = max(held, default=0.0)
    metrics["timing_s/agent_loop/loop_lag/max"] = lag.worst
    metrics["timing_s/agent_loop/loop_lag/mean"] = lag.total / max(lag.count, 1)
    if not alive:
        return metrics
    metrics["rollout/tool_call_rate"] = float((calls > 0).mean())
    metrics["rollout/tool_error_rate"] = errors / max(float(calls.sum()), errors, 1.0)
    metrics |= mean_max_min("num_turns", (row.num_turns for row in alive))
    metrics |= mean_max_min("tool_call_counts", calls)
    metrics |= mean_max_min("response_length", (len(row.tokens.response) for row in alive))
    metrics["response_length/clip_ratio"] = sum(row.stop_reason is StopReason.LENGTH for row in alive) / len(alive)
    metrics |= mean_max_min("prompt_length", (len(row.tokens.prompt) for row in alive))
    for name in ("generate_sequences", "tool_calls", "compute_score"):
        metrics |= mean_max_min(f"timing_s/agent_loop/{name}", (row.metrics.get(name, 0.0) for row in alive))
    for name in dict.fromkeys(name for row in alive for name in row.reward_metrics):
        values = [row.reward_metrics[name] for row in alive if name in row.reward_metrics]
        metrics |= mean_max_min(f"reward/{name}", values)
        if len(values) < len(alive):
            metrics[f"reward/{name}/rows"] = float(len(values))
    return metrics


def mean_max_min(name: str, values: Iterable[float] | np.ndarray | torch.Tensor) -> Metrics:
    """`{name}/mean`, `/max` and `/min`; empty without values."""
    array = np.asarray(values if hasattr(values, "__len__") else list(values), dtype=np.float64).reshape(-1)
    if not array.size:
        return {}
    return {f"{name}/mean": float(array.mean()), f"{name}/max": float(array.max()), f"{name}/min": float(array.min())}


def failures_of(rows: Sequence[RolloutRow], uids: Sequence[Any], samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """One record per failed trajectory: its row, the cause, how many tokens it had, and what is known of what it said.

    Args:
        rows: finished trajectories, failed or not.
        uids: of the batch, by row.
        samples: the same.
    """
    return [
        {
            "row": row.row,
            "uid": uids[row.row],
            "stop_reason": row.stop_reason.value,
            "error": row.error,
            "earlier_errors": row.earlier_errors,
            "response_tokens": len(row.tokens.response),
            "data_source": samples[row.row].data_source,
            "messages": mark_errors(row.facts.messages, row.facts.tool_errors) or samples[row.row].prompt,
        }
        for row in rows
        if row.error is not None
    ]


def tell_refills(rows: Sequence[RolloutRow]) -> None:
    """Log repeated trajectories: even a batch that ends complete may show a service in trouble."""
    again = [row for row in rows if row.earlier_errors]
    if again:
        good = sum(not row.is_left_out for row in again)
        cause = again[0].earlier_errors[0][:_CAUSE_CHARS]
        logger.warning("repeated %d trajectories, %d successfully; the first cause: %s", len(again), good, cause)


def check_failure_budget(failures: Sequence[dict[str, Any]], total: int, max_rate: float) -> None:
    """Stop the run if too many trajectories failed.

    Raises:
        FailureBudgetError: lists the causes, the most frequent first.
    """
    if len(failures) <= max_rate * total and len(failures) < total:
        return
    raise FailureBudgetError(
        f"{len(failures)} of {total} trajectories failed, more than actor_rollout_ref.rollout.max_failure_rate "
        f"({max_rate:g}) allows:{causes_of(failures)}"
    )


def causes_of(failures: Sequence[dict[str, Any]]) -> str:
    """The causes with their counts, the most frequent first, each on a line of its own.

    Errors that differ only in numbers and quoted values are one cause: `KeyError: 'a' (score.py:3)` and `KeyError: 'b'
    (score.py:3)`. The first of them is shown.
    """
    causes = grouped_causes(failures)
    shown = "".join(f"\n  {count} x {cause}" for count, cause in causes[:_SHOWN_CAUSES])
    return shown + (f"\n  and {len(causes) - _SHOWN_CAUSES} other causes" if len(causes) > _SHOWN_CAUSES else "")


def grouped_causes(failures: Sequence[dict[str, Any]]) -> list[tuple[int, str]]:
    """The causes as above: how many there are of each kind, and the first of them."""
    counts, first = Counter[str](), dict[str, str]()
    for failure in failures:
        cause = f"{failure['stop_reason']}: {str(failure['error'])[:_CAUSE_CHARS]}"
        kind = _VARIES.sub("*", cause)
        counts[kind] += 1
        first.setdefault(kind, cause)
    return [(count, first[kind]) for kind, count in counts.most_common()]
