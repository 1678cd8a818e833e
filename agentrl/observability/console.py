"""The console tracker: a live page with progress, a conversation and alarms; off a terminal, one plain line a step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl.observability.conversation_text import first_question, last_said
from agentrl.observability.tracker import RunInfo, Tracker, ValidationConversation
from agentrl.observability.wording import four_digits, one_line, span

if TYPE_CHECKING:
    from agentrl.data_proto import DataProto

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
ALARM = "health/alarm/"
FAILED = "rollout/env_error_rate"
STAGES = {
    "gen": "rolling out",
    "reward": "scoring",
    "old_log_prob": "log-probs",
    "ref": "reference log-probs",
    "values": "values",
    "adv": "advantages",
    "update_actor": "training",
    "update_critic": "training the critic",
    "update_weights": "sending weights",
    "testing": "validating",
    "save_checkpoint": "saving",
    "update": "training",
}
"""What people call the stages of a step; others are shown by their names."""
WITH_TRAJECTORIES = ("gen", "testing")
_LONG_S = 1.0
"""A stage that took less in the step before gets no bar of its own: it would only flicker."""
ROWS = 12
RECENT = 10
"""The time that is left follows from the mean of this many steps."""
_BELOW_TABLE = 16
"""Lines of a terminal that the conversation, the bars and the table's frame take."""
_SHOWN = 240
"""Characters of a question or an answer."""


class ConsoleTracker(Tracker):
    """Shows the last steps, the running stage with its progress, the time that is left, alarms and a conversation.

    Args:
        console: where to print; None: standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._rows: deque[tuple[int, dict[str, float]]] = deque(maxlen=ROWS)
        self._seconds: deque[float] = deque(maxlen=RECENT)
        self._usual: dict[str, float] = {}
        """Seconds that each stage took the last time, as `timing_s/STAGE`."""
        self._conversation: RenderableType | None = None
        self._live: Live | None = None
        self._part: TaskID | None = None
        """The bar of the running stage."""

    @property
    def shows_progress(self) -> bool:
        """On a terminal."""
        return self._live is not None

    def on_start(self, run: RunInfo) -> None:
        """Print where the run writes; start the live page on a terminal."""
        self._total = run.total_steps
        self._began = time.monotonic()
        resumed = "" if run.resumed_from is None else f", resumed after step {run.resumed_from}"
        head = f"{run.project}/{run.experiment}: {run.total_steps} steps in {run.folder}{resumed}"
        self._console.print(head, soft_wrap=True, highlight=False, markup=False)
        if not self._console.is_terminal:
            return
        described = TextColumn("{task.description}")
        self._progress = Progress(SpinnerColumn(), described, _Bar(), _Count(), _Times(), console=self._console)
        self._task = self._progress.add_task("starting", total=run.total_steps, completed=run.resumed_from or 0)
        self._live = Live(self._render(), console=self._console, refresh_per_second=4)
        self._live.start()

    def on_stage(self, step: int, stage: str) -> None:
        """Name the running stage beside the bar."""
        if not self._live:
            return
        name = STAGES.get(stage, stage)
        self._progress.update(self._task, description=f"step {step}: {name}")
        self._end_part()
        usual = self._usual.get(f"timing_s/{stage}", 0.0)
        if stage in WITH_TRAJECTORIES or usual >= _LONG_S:
            name = "trajectories" if stage in WITH_TRAJECTORIES else name
            self._part = self._progress.add_task(name, total=None, usual_s=usual)

    def on_progress(self, done: int, total: int) -> None:
        """Move the bar of trajectories."""
        if self._live and self._part is not None:
            self._progress.update(self._part, completed=done, total=total)

    def on_rollouts(self, step: int, batch: DataProto) -> None:
        """Show one conversation of the step."""
        if self._live and len(batch):
            # Another place of the batch at each step: the first one would always be of the same kind.
            place = step % len(batch)
            fields = {name: values[place] for name, values in batch.non_tensor_batch.items()}
            self._conversation = _conversation(step, fields)
            self._live.update(self._render())

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
        self._usual |= {name: seconds for name, seconds in metrics.items() if name.startswith("timing_s/")}
        if "timing_s/step" in metrics:
            self._seconds.append(metrics["timing_s/step"])
        if self._live:
            self._progress.update(self._task, completed=step, left_s=self._left_s(step))
            self._live.update(self._render())
        else:
            self._console.print(self._line(step, metrics), soft_wrap=True, highlight=False, markup=False)

    def close(self) -> None:
        """Leave the last table on the screen."""
        if self._live:
            ended = "done" if self._progress.tasks[0].finished else "stopped"
            self._progress.update(self._task, description=ended, left_s=None)
            self._end_part()
            self._live.stop()
            self._live = None

    def _end_part(self) -> None:
        """Take the bar of the stage away."""
        if self._part is not None:
            self._progress.remove_task(self._part)
            self._part = None

    def _left_s(self, step: int) -> float | None:
        return fmean(self._seconds) * (self._total - step) if self._seconds else None

    def _line(self, step: int, metrics: dict[str, float]) -> str:
        shown = [f"{title} {four_digits(metrics[name])}" for title, name in COLUMNS.items() if name in metrics]
        shown += [f"{name} {four_digits(value)}" for name, value in metrics.items() if name.startswith(VALIDATION)]
        left = self._left_s(step)
        ends = [f"elapsed {time.monotonic() - self._began:.0f} s", *([f"left {span(left)}"] if left else [])]
        return "  ".join([f"step {step}/{self._total}", *shown, *ends, *_troubles(metrics)])

    def _render(self) -> Group:
        parts: list[RenderableType] = [self._table()]
        parts += [self._conversation] if self._conversation is not None else []
        newest = self._rows[-1][1] if self._rows else {}
        parts += [Text(trouble, "bold red") for trouble in _troubles(newest)]
        return Group(*parts, self._progress)

    def _table(self) -> Table:
        """The last steps, as many as the terminal has room for."""
        rows = list(self._rows)[-max(self._console.height - _BELOW_TABLE, 3) :]
        shown = [title for title, name in COLUMNS.items() if any(name in metrics for _, metrics in rows)]
        validation = dict.fromkeys(name for _, row in rows for name in row if name.startswith(VALIDATION))
        table = Table(title=None, expand=False)
        for title in ["step", *shown, *(name.removeprefix(VALIDATION) for name in validation)]:
            table.add_column(title, justify="right", overflow="fold")
        for step, metrics in rows:
            names = [COLUMNS[title] for title in shown] + list(validation)
            table.add_row(str(step), *(four_digits(metrics[name]) if name in metrics else "" for name in names))
        return table


class _Bar(BarColumn):
    """How far a stage is: by what is counted, else by the time that it took last; after that time it pulses."""

    def render(self, task: Task) -> ProgressBar:
        """The bar of a task."""
        bar, usual, spent = super().render(task), task.fields.get("usual_s"), task.elapsed
        if task.total is None and usual and spent is not None and spent < usual:
            bar.total, bar.completed = usual, spent
        return bar


class _Count(ProgressColumn):
    """How many of how many; nothing where nobody counts."""

    def render(self, task: Task) -> Text:
        """`3/8`."""
        return Text("" if task.total is None else f"{task.completed:.0f}/{task.total:.0f}", "green")


class _Times(ProgressColumn):
    """The time since the bar began, what is left, and what is usual."""

    def render(self, task: Task) -> Text:
        """`2.1 min, 14 min left`, or of a stage `3 s, 5 s left, last time 8 s`."""
        left, usual = _left_of(task), task.fields.get("usual_s")
        shown = [span(task.elapsed)] if task.elapsed is not None else []
        shown += [f"{span(left)} left"] if left else []
        shown += [f"last time {span(usual)}"] if usual else []
        return Text(", ".join(shown), "cyan")


def _left_of(task: Task) -> float | None:
    """Seconds: of the run as it says; of a stage by its last time, else, or if it takes longer, by what is counted."""
    usual, spent = task.fields.get("usual_s"), task.elapsed or 0.0
    if usual is None:
        left: float | None = task.fields.get("left_s")
        return left
    if spent < usual:
        return float(usual - spent)
    return spent / task.completed * (task.total - task.completed) if task.total and task.completed else None


def _troubles(metrics: dict[str, float]) -> list[str]:
    """Alarms of `trainer.health`, and trajectories that failed."""
    alarms = [name.removeprefix(ALARM) for name in metrics if name.startswith(ALARM)]
    failed = metrics.get(FAILED, 0.0)
    return [
        *([f"alarm: {', '.join(alarms)}"] if alarms else []),
        *([f"failed: {failed:.1%} of the trajectories"] if failed else []),
    ]


def _conversation(step: int, fields: dict[str, Any]) -> Panel:
    """A question and the answer to it."""
    body = (
        Text(one_line(first_question(fields), _SHOWN), "cyan")
        + Text("\n")
        + Text(one_line(last_said(fields), _SHOWN), "bold")
    )
    title = f"step {step}: score {four_digits(float(fields.get('score', 0.0)))}, {fields.get('stop_reason', '')}"
    return Panel(body, title=title, title_align="left", expand=False)
