"""`agentrl trace`: where the time of a run's steps went, from its own metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.errors import UserInputError
from agentrl.observability.run_folder import open_run
from agentrl.observability.wording import visible

STEP = "timing_s/step"
INSIDE = {
    "timing_s/agent_loop/generate_sequences/mean": "waits for the engine",
    "timing_s/agent_loop/tool_calls/mean": "waits for tools",
    "timing_s/agent_loop/compute_score/mean": "is scored",
}
"""What a trajectory does while its step is in `gen`."""
Steps = list[dict[str, float]]


def trace_run(run: Path, last: int | None = None) -> None:
    """Print the phases of a run's steps.

    Args:
        run: the run folder, or one of its checkpoints.
        last: the number of newest steps; None: all.

    Raises:
        UserInputError: the folder is no run, or its metrics hold no step.
    """
    found = open_run(run)
    log = found.metrics()
    steps = [row for row in log.rows if STEP in row][-(last or 0) :]
    if not log.file.is_file():
        raise UserInputError(
            f"{run} has no {log.file.name}: the run wrote none, because trainer.logger did not name jsonl"
        )
    if not steps:
        raise UserInputError(f"{log.file} holds no finished training step, so there is no time to tell")
    console = Console(soft_wrap=True)
    total = sum(row[STEP] for row in steps) / len(steps)
    numbers = sorted(int(row["step"]) for row in steps)
    span = f"step {numbers[0]}" if len(steps) == 1 else f"{len(steps)} steps, {numbers[0]} to {numbers[-1]}"
    console.print(
        f"{visible(str(found.path))}: {span}, {total:.3g} s each{_throughput(steps)}", highlight=False, markup=False
    )
    console.print(_phases(steps, total))
    for line in _inside(steps):
        console.print(visible(line), highlight=False, markup=False)
    traces = sorted(path for kind in ("json", "pickle") for path in found.path.glob(f"profile/step_*/*.{kind}"))
    if traces:
        files = visible(", ".join(map(str, traces)))
        console.print(f"Profiles of single steps: {files}", highlight=False, markup=False)


def _phases(steps: Steps, total: float) -> Table:
    """One row per phase, the longest first, and what is left of the step."""
    table = Table("phase", *(f"{name}" for name in ("mean s", "share", "longest s", "in steps")))
    for column in table.columns[1:]:
        column.justify = "right"
    rest = total
    for phase in sorted(_names(steps), key=lambda name: -_sum(steps, name)):
        mean = _sum(steps, phase) / len(steps)
        rest -= mean
        seconds = [row[phase] for row in steps if phase in row]
        name = phase.removeprefix("timing_s/")
        table.add_row(Text(visible(name)), f"{mean:.3f}", _share(mean, total), f"{max(seconds):.3f}", str(len(seconds)))
    table.add_row("(between phases)", f"{max(rest, 0.0):.3f}", _share(max(rest, 0.0), total), "", "")
    return table


def _names(steps: Steps) -> set[str]:
    """Metrics that are the seconds of a phase: `timing_s/gen`, but not `timing_s/agent_loop/…`."""
    return {name for row in steps for name in row if name.startswith("timing_s/") and name.count("/") == 1} - {STEP}


def _inside(steps: Steps) -> list[str]:
    """What trajectories did during `gen`."""
    parts = []
    for name, does in INSIDE.items():
        known = [row[name] for row in steps if name in row]
        if known:
            parts.append(f"{does} {sum(known) / len(known):.3g} s")
    return [f"During gen, an average trajectory {', '.join(parts)}."] if parts else []


def _throughput(steps: Sequence[dict[str, float]]) -> str:
    speeds = [row["perf/throughput"] for row in steps if "perf/throughput" in row]
    return f", {sum(speeds) / len(speeds):.4g} tokens/s per rank" if speeds else ""


def _sum(steps: Steps, name: str) -> float:
    return sum(row.get(name, 0.0) for row in steps)


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole > 0 else ""
