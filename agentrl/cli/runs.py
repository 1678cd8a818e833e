"""`agentrl runs`: every run of a folder in one table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from agentrl.cli.output import print_json, table_console
from agentrl.errors import UserInputError
from agentrl.observability.run_folder import Row, RunFolder, find_runs
from agentrl.observability.run_state import State
from agentrl.observability.wording import four_digits, one_line, span, visible

LAST = 10
"""Reward and speed are means over this many of the newest steps."""
REWARD, LOSS = "critic/score/mean", "train/loss"
_STYLES = {
    State.RUNNING: "cyan",
    State.FINISHED: "green",
    State.STOPPED: "yellow",
    State.FAILED: "bold red",
    State.KILLED: "bold red",
    State.UNKNOWN: "dim",
}


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of the table. Times are seconds since 1970."""

    path: str
    state: State
    step: int
    total_steps: int | None = None
    reward: float | None = None
    """The mean score of training trajectories; of `agentrl sft`: None."""
    loss: float | None = None
    """Of `agentrl sft`."""
    validation: dict[str, float] = field(default_factory=dict)
    """The newest of each main metric of validation."""
    seconds_per_step: float | None = None
    tokens_per_second: float | None = None
    """Of one rank."""
    seconds_left: float | None = None
    """Of a run that goes on."""
    began: float | None = None
    updated: float | None = None
    alarms: list[str] = field(default_factory=list)
    error: str | None = None
    """Why it failed, or why its folder cannot be read."""


def show_runs(folder: Path, *, as_json: bool) -> None:
    """Print the runs of a folder, the one that was heard of last at the end.

    Raises:
        UserInputError: the folder cannot be read, or holds no run.
    """
    runs = find_runs(folder)
    if not runs:
        raise UserInputError(f"{folder} holds no run: wanted a folder below which `agentrl train` has written runs")
    summaries = sorted(map(summary, runs), key=lambda found: found.updated or 0.0)
    if as_json:
        print_json([asdict(found) for found in summaries])
        return
    table_console().print(_table(summaries, folder))
    for found in summaries:
        if found.error is not None:
            typer.echo(f"{visible(found.path)}: {one_line(found.error, 300)}")


def summary(run: RunFolder) -> RunSummary:
    """What a run's folder says about it; one that is damaged says so in `error`."""
    try:
        rows = run.recent_metrics()
        state = run.state(rows)
    except UserInputError as error:
        return RunSummary(str(run.path), State.UNKNOWN, 0, error=str(error))
    validation: Row = {}
    for row in rows:
        validation |= {name: value for name, value in row.items() if name.startswith("val-core/") or name == "val/loss"}
    newest = rows[-1] if rows else {}
    seconds = _mean(rows, "timing_s/step")
    left = None if seconds is None or state.total_steps is None else seconds * (state.total_steps - state.step)
    return RunSummary(
        path=str(run.path),
        state=state.state,
        step=state.step,
        total_steps=state.total_steps,
        reward=_mean(rows, REWARD),
        loss=_mean(rows, LOSS),
        validation=validation,
        seconds_per_step=seconds,
        tokens_per_second=_mean(rows, "perf/throughput"),
        seconds_left=left if state.state is State.RUNNING else None,
        began=state.began,
        updated=state.updated,
        alarms=[name.removeprefix("health/alarm/") for name in newest if name.startswith("health/alarm/")],
        error=state.error,
    )


def _mean(rows: Sequence[Row], name: str) -> float | None:
    known = [row[name] for row in rows if name in row][-LAST:]
    return sum(known) / len(known) if known else None  # `fmean` raises where a sum is too large for a float


def _table(summaries: Sequence[RunSummary], folder: Path) -> Table:
    has_loss = any(found.loss is not None for found in summaries)
    table = Table("run", "state")
    for title in (
        "step",
        "reward",
        *(["loss"] if has_loss else []),
        "validation",
        "s/step",
        "tokens/s",
        "left",
        "heard",
    ):
        table.add_column(title, justify="right")
    for found in summaries:
        loss = [_shown(found.loss)] if has_loss else []
        state = Text(found.state.value, _STYLES[found.state])
        alarms = Text(f" alarm: {visible(', '.join(found.alarms))}" if found.alarms else "", "bold red")
        table.add_row(
            Text(visible(_below(found.path, folder))),
            state + alarms,
            f"{found.step}/{found.total_steps or '?'}",
            _shown(found.reward),
            *loss,
            "\n".join(four_digits(value) for value in found.validation.values()),
            _shown(found.seconds_per_step),
            _shown(found.tokens_per_second),
            "" if found.seconds_left is None else span(found.seconds_left),
            "" if found.updated is None else f"{span(time.time() - found.updated)} ago",
        )
    return table


def _below(path: str, folder: Path) -> str:
    """The name of a run in the table: its path below the folder, as one can type it there."""
    inside = Path(path)
    return str(inside.relative_to(folder)) if inside != folder and inside.is_relative_to(folder) else path


def _shown(value: float | None) -> str:
    return "" if value is None else four_digits(value)
