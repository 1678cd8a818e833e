"""The demo's display while it trains: a live table on a terminal, else plain lines."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from agentrl.observability.tracker import RunInfo, Tracker

if TYPE_CHECKING:
    from agentrl.cli.demo.description import Demo
    from agentrl.data_proto import DataProto

ROWS = 12
PLAIN_EVERY = 10


class WarmStartShow(Tracker):
    """Progress of the supervised warm start."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def on_start(self, run: RunInfo) -> None:
        """Start the bar."""
        self._total = run.total_steps
        self._progress = _progress(self._console)
        self._task = self._progress.add_task("warm start", total=run.total_steps)
        if self._console.is_terminal:
            self._progress.start()

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Show loss and token accuracy."""
        text = f"warm start: loss {metrics['train/loss']:.3f}, tokens right {metrics['train/accuracy']:.0%}"
        self._progress.update(self._task, completed=step, description=text)
        if not self._console.is_terminal:
            self._console.print(f"{text}, step {step}/{self._total}", soft_wrap=True, highlight=False)

    def close(self) -> None:
        """Leave the bar on the screen."""
        if self._console.is_terminal and hasattr(self, "_progress"):
            self._progress.stop()


@dataclass
class History:
    """Numbers of a run for the closing report."""

    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    """Metrics by step; step 0 is the validation before training."""
    tokens_generated: int = 0
    """Tokens that the policy sampled in training rollouts."""

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Steps that report a metric, and its values."""
        steps = [step for step, metrics in self.steps.items() if name in metrics]
        return steps, [self.steps[step][name] for step in steps]

    def total(self, name: str) -> float:
        """Sum of a metric over all steps."""
        return sum(self.series(name)[1])


class TrainingShow(Tracker):
    """The live table of the reinforcement learning; it also keeps the run's numbers.

    Args:
        console: where to show.
        demo: whose run it is.
    """

    def __init__(self, console: Console, demo: Demo) -> None:
        self.history = History()
        self._console, self._demo = console, demo
        self._columns = {
            "held-out success": demo.success,
            f"held-out {demo.second.title}": demo.second.held_out,
            "reward": "critic/score/mean",
            demo.second.title: demo.second.training,
            "entropy": "actor/entropy",
            "seconds": "timing_s/step",
        }
        self._rows: deque[int] = deque(maxlen=ROWS)
        self._live: Live | None = None
        self._began = time.monotonic()

    def on_start(self, run: RunInfo) -> None:
        """Start the table."""
        self._total = run.total_steps
        self._began = time.monotonic()
        if self._console.is_terminal:
            self._progress = _progress(self._console)
            self._task = self._progress.add_task("reinforcement learning", total=run.total_steps)
            self._live = Live(self._render(), console=self._console, refresh_per_second=4)
            self._live.start()

    def on_stage(self, step: int, stage: str) -> None:
        """Name the running stage beside the bar."""
        if self._live:
            self._progress.update(self._task, description=f"step {step}: {stage}")

    def on_rollouts(self, step: int, batch: DataProto) -> None:
        """Count the sampled tokens."""
        self.history.tokens_generated += int(batch.batch["response_mask"].sum())

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Show one step."""
        self.history.steps[step] = dict(metrics)
        self._rows.append(step)
        if self._live:
            self._progress.update(self._task, completed=step)
            self._live.update(self._render())
        elif self._demo.success in metrics or step % PLAIN_EVERY == 0:
            self._console.print(self._line(step), soft_wrap=True, highlight=False, markup=False)

    def close(self) -> None:
        """Leave the last table on the screen."""
        if self._live:
            self._live.stop()
            self._live = None

    def _line(self, step: int) -> str:
        cells = self._cells(step)
        shown = [f"{title} {cell}" for title, cell in zip(self._columns, cells, strict=True) if cell]
        return "  ".join([f"step {step}/{self._total}", *shown, f"elapsed {time.monotonic() - self._began:.0f} s"])

    def _render(self) -> Group:
        table = Table(title=self._demo.title)
        for title in ("step", *self._columns):
            table.add_column(title, justify="right")
        for step in self._rows:
            table.add_row(str(step), *self._cells(step))
        return Group(table, self._held_out(), self._progress)

    def _cells(self, step: int) -> list[str]:
        metrics = self.history.steps[step]
        return [f"{metrics[name]:.2f}" if name in metrics else "" for name in self._columns.values()]

    def _held_out(self) -> Text:
        values = self.history.series(self._demo.success)[1]
        return Text(f"held-out success: {' → '.join(f'{value:.2f}' for value in values)}" if values else "")


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
