"""The console tracker: a live table with progress on a terminal, else one plain line per step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from agentrl.observability.tracker import RunInfo, Tracker, ValidationConversation

COLUMNS = {
    "score": "critic/score/mean",
    "turns": "num_turns/mean",
    "tool calls": "rollout/tool_call_rate",
    "length": "response_length/mean",
    "entropy": "actor/entropy",
    "loss": "actor/pg_loss",
    "grad norm": "actor/grad_norm",
    "value loss": "critic/vf_loss",
    "train loss": "train/loss",
    "tokens right": "train/accuracy",
    "val loss": "val/loss",
    "tokens/s": "perf/throughput",
    "seconds": "timing_s/step",
}
"""Column title -> metric; a column appears once its metric does."""
VALIDATION = "val-core/"
ROWS = 12


class ConsoleTracker(Tracker):
    """Shows the last steps, the running stage and the time.

    Args:
        console: where to print; None: standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._rows: deque[tuple[int, dict[str, float]]] = deque(maxlen=ROWS)
        self._live: Live | None = None

    def on_start(self, run: RunInfo) -> None:
        """Print where the run writes; start the live table on a terminal."""
        self._total = run.total_steps
        self._began = time.monotonic()
        resumed = "" if run.resumed_from is None else f", resumed after step {run.resumed_from}"
        head = f"{run.project}/{run.experiment}: {run.total_steps} steps in {run.folder}{resumed}"
        self._console.print(head, soft_wrap=True, highlight=False, markup=False)
        if not self._console.is_terminal:
            return
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task = self._progress.add_task("starting", total=run.total_steps, completed=run.resumed_from or 0)
        self._live = Live(self._render(), console=self._console, refresh_per_second=4)
        self._live.start()

    def on_stage(self, step: int, stage: str) -> None:
        """Name the running stage beside the bar."""
        if self._live:
            self._progress.update(self._task, description=f"step {step}: {stage}")

    def on_validation(self, step: int, conversations: Sequence[ValidationConversation]) -> None:
        """Print validation conversations."""
        self._show(f"validation at step {step}", conversations)

    def on_generations(self, step: int, conversations: Sequence[ValidationConversation]) -> None:
        """Print conversations of a training step."""
        self._show(f"rollout of step {step}", conversations)

    def _show(self, title: str, conversations: Sequence[ValidationConversation]) -> None:
        for item in conversations:
            body = Text(f"{item.input}\n") + Text(item.output, style="bold")
            if self._console.is_terminal:
                self._console.print(Panel(body, title=f"{title}, score {item.score:g}", expand=False))
            else:
                self._console.print(f"{title}, score {item.score:g}:", body, sep="\n", soft_wrap=True, highlight=False)

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Show one step."""
        self._rows.append((step, metrics))
        if self._live:
            self._progress.update(self._task, completed=step)
            self._live.update(self._render())
        else:
            self._console.print(self._line(step, metrics), soft_wrap=True, highlight=False, markup=False)

    def close(self) -> None:
        """Leave the last table on the screen."""
        if self._live:
            ended = "done" if self._progress.finished else "stopped"
            self._progress.update(self._task, description=ended)
            self._live.stop()
            self._live = None

    def _line(self, step: int, metrics: dict[str, float]) -> str:
        shown = [f"{title} {_number(metrics[name])}" for title, name in COLUMNS.items() if name in metrics]
        shown += [f"{name} {_number(value)}" for name, value in metrics.items() if name.startswith(VALIDATION)]
        return "  ".join([f"step {step}/{self._total}", *shown, f"elapsed {time.monotonic() - self._began:.0f} s"])

    def _render(self) -> Group:
        shown = [title for title, name in COLUMNS.items() if any(name in metrics for _, metrics in self._rows)]
        validation = dict.fromkeys(name for _, row in self._rows for name in row if name.startswith(VALIDATION))
        table = Table(title=None, expand=False)
        for title in ["step", *shown, *(name.removeprefix(VALIDATION) for name in validation)]:
            table.add_column(title, justify="right", overflow="fold")
        for step, metrics in self._rows:
            names = [COLUMNS[title] for title in shown] + list(validation)
            table.add_row(str(step), *(_number(metrics[name]) if name in metrics else "" for name in names))
        return Group(table, self._progress)


def _number(value: float) -> str:
    return f"{value:.4g}"
