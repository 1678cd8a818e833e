"""What a run's metrics show: curves, events on the time line, and where the time of each step went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Any

from agentrl.types import StopReason

Row = Mapping[str, float]
STEP_TIME = "timing_s/step"
REWARD = "critic/score/mean"
_ALARM = "health/alarm/"
_REASON = "rollout/stop_reason/"


def curves_of(rows: Sequence[Row], since: int | None, names: Sequence[str] | None) -> dict[str, Any]:
    """Each metric as a list with one value for each step; a step without it has null.

    Args:
        rows: of the metrics file.
        since: only steps after this one.
        names: only these metrics; None: all.
    """
    every = sorted({name for row in rows for name in row} - {"step"})
    seconds = list(accumulate(row.get(STEP_TIME, 0.0) for row in rows))
    shown = [(row, time) for row, time in zip(rows, seconds, strict=True) if since is None or step_of(row) > since]
    wanted = every if names is None else [name for name in names if name in every]
    return {
        "steps": [step_of(row) for row, _ in shown],
        "seconds": [time for _, time in shown],
        "names": every,
        "metrics": {name: [row.get(name) for row, _ in shown] for name in wanted},
    }


def timing_of(rows: Sequence[Row]) -> dict[str, Any]:
    """The seconds of each phase of each step, and `other`: what is in no phase."""
    timed = [row for row in rows if STEP_TIME in row]
    every = sorted({name for row in timed for name in row if _is_phase(name)})
    return {
        "steps": [step_of(row) for row in timed],
        "phases": {name.removeprefix("timing_s/"): [row.get(name) for row in timed] for name in every},
        "other": [max(0.0, row[STEP_TIME] - sum(row.get(name, 0.0) for name in every)) for row in timed],
    }


def events_of(rows: Sequence[Row], resumed: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Alarms, failures, validations, checkpoints, resumes and steps that changed nothing, in the order of the steps.

    Args:
        rows: of the metrics file.
        resumed: the steps after which the run was resumed.
    """
    events, time, active, left = list[dict[str, Any]](), 0.0, set[str](), sorted(resumed)

    def resumes(before: float) -> list[dict[str, Any]]:
        """Those that come before a step."""
        known = [left.pop(0) for step in list(left) if step < before]
        return [{"step": step, "time": time, "kind": "resume", "text": f"resumed after step {step}"} for step in known]

    for row in rows:
        events += resumes(step_of(row))
        time += row.get(STEP_TIME, 0.0)
        now = {name.removeprefix(_ALARM) for name, value in row.items() if name.startswith(_ALARM) and value}
        changes = [("alarm", f"alarm {name} begins") for name in sorted(now - active)]
        changes += [("alarm_end", f"alarm {name} ends") for name in sorted(active - now)]
        active = now
        events += [
            {"step": step_of(row), "time": time, "kind": kind, "text": text} for kind, text in [*changes, *_events(row)]
        ]
    return [*events, *resumes(inf)]


def last_value(rows: Sequence[Row], name: str) -> float | None:
    """The newest value of a metric."""
    return next((row[name] for row in reversed(rows) if name in row), None)


def step_of(row: Row) -> int:
    """The step of a line of metrics."""
    return int(row.get("step", 0))


def _is_phase(name: str) -> bool:
    """`timing_s/gen` is one; `timing_s/agent_loop/tool_calls/mean` is inside of one."""
    return name.startswith("timing_s/") and name.count("/") == 1 and name != STEP_TIME


def _events(row: Row) -> Iterator[tuple[str, str]]:
    if share := row.get("rollout/env_error_rate"):
        # One that failed without a result, or while it was scored, keeps the reason that it ended with.
        known = {reason: row.get(f"{_REASON}{reason}") for reason in StopReason if reason.is_failure}
        reasons = ", ".join(f"{part:.1%} as {reason}" for reason, part in known.items() if part)
        yield "failure", f"{share:.1%} of the trajectories failed{f': {reasons}' if reasons else ''}"
    if unscored := row.get("reward_model/left_out"):
        yield "failure", f"the reward model could not score {unscored:g} trajectories"
    if row.get("training/skipped_steps"):
        yield "skipped", "the step changed no weight"
    for name, value in row.items():
        if name.startswith("val-core/"):
            yield "validation", f"{name.removeprefix('val-core/')} = {value:.4g}"
    if "timing_s/save_checkpoint" in row:
        yield "checkpoint", "checkpoint saved"
