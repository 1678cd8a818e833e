"""The trackers of a run: those that `trainer.logger` names, and a combination of several."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.errors import ConfigError, suggest
from agentrl.observability.console import ConsoleTracker
from agentrl.observability.mlflow_tracker import MlflowTracker
from agentrl.observability.run_folder import METRICS_FILE
from agentrl.observability.tracker import RunInfo, Tracker, ValidationConversation
from agentrl.observability.wandb_tracker import WandbTracker

if TYPE_CHECKING:
    from agentrl.data_proto import DataProto

__all__ = ["JsonlTracker", "RunInfo", "TensorboardTracker", "Tracker", "Trackers", "make_trackers"]


class JsonlTracker(Tracker):
    """One JSON object per step in `{run folder}/metrics.jsonl`; a resumed run continues after its checkpoint's step."""

    def on_start(self, run: RunInfo) -> None:
        """Open the file and drop lines after the checkpoint's step: those steps will run again."""
        self._path = run.folder / METRICS_FILE
        kept = [] if run.resumed_from is None else _lines_up_to(self._path, run.resumed_from)
        self._path.write_text("".join(kept), encoding="utf-8")

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Append one line."""
        line = json.dumps({"step": step, **{name: float(value) for name, value in metrics.items()}})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class TensorboardTracker(Tracker):
    """Scalars and validation texts under `{run folder}/tensorboard`."""

    def on_start(self, run: RunInfo) -> None:
        """Open the writer."""
        from torch.utils.tensorboard import SummaryWriter

        purge = None if run.resumed_from is None else run.resumed_from + 1
        self._writer = SummaryWriter(log_dir=str(run.folder / "tensorboard"), purge_step=purge)

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Write one scalar per metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def on_validation(self, step: int, conversations: Sequence[ValidationConversation]) -> None:
        """Write conversations as text."""
        self._show("validation", step, conversations)

    def on_generations(self, step: int, conversations: Sequence[ValidationConversation]) -> None:
        """Write conversations as text."""
        self._show("training", step, conversations)

    def _show(self, kind: str, step: int, conversations: Sequence[ValidationConversation]) -> None:
        for number, item in enumerate(conversations):
            text = f"    {item.data_source}, score {item.score:g}\n\n{_indent(item.input)}\n\n{_indent(item.output)}"
            self._writer.add_text(f"{kind}/{number}", text, step)

    def close(self) -> None:
        """Flush and close."""
        if hasattr(self, "_writer"):
            self._writer.close()


class Trackers(Tracker):
    """Several trackers as one. An error of a tracker names it in a note, and ends the run."""

    def __init__(self, members: Sequence[Tracker]) -> None:
        self.members = list(members)

    def on_start(self, run: RunInfo) -> None:
        """Pass on."""
        self._tell_each("on_start", run)

    def progress(self) -> Callable[[int, int], None] | None:
        """Who is told how many of how many trajectories have ended; None: no member shows it."""
        return self.on_progress if any(member.shows_progress for member in self.members) else None

    def on_progress(self, done: int, total: int) -> None:
        """Pass on."""
        self._tell_each("on_progress", done, total)

    def on_stage(self, step: int, stage: str) -> None:
        """Pass on."""
        self._tell_each("on_stage", step, stage)

    def on_rollouts(self, step: int, batch: DataProto) -> None:
        """Pass on."""
        self._tell_each("on_rollouts", step, batch)

    def on_validation(self, step: int, conversations: Sequence[ValidationConversation]) -> None:
        """Pass on."""
        self._tell_each("on_validation", step, conversations)

    def on_generations(self, step: int, conversations: Sequence[ValidationConversation]) -> None:
        """Pass on."""
        self._tell_each("on_generations", step, conversations)

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Pass on."""
        self._tell_each("log", metrics, step)

    def close(self) -> None:
        """Pass on."""
        self._tell_each("close")

    def _tell_each(self, hook: str, *arguments: object) -> None:
        for member in self.members:
            try:
                getattr(member, hook)(*arguments)
            except BaseException as error:
                error.add_note(f"raised by the tracker {type(member).__name__}, in {hook}")
                raise


def make_trackers(names: Sequence[str]) -> list[Tracker]:
    """Build the trackers that `trainer.logger` names.

    Raises:
        ConfigError: an unknown name, or one whose package is not installed.
    """
    kinds: dict[str, type[Tracker]] = {
        "console": ConsoleTracker,
        "jsonl": JsonlTracker,
        "tensorboard": TensorboardTracker,
        "wandb": WandbTracker,
        "mlflow": MlflowTracker,
    }
    problems = [
        f"trainer.logger: '{name}' is not a tracker."
        + (f" A list is written [{name}]." if "," in name else suggest(name, kinds))
        for name in names
        if name not in kinds
    ]
    problems += [
        f"trainer.logger: '{name}' needs the package {name}: pip install 'agentrl[trackers]'"
        for name in ("wandb", "mlflow")
        if name in names and not _is_installed(name)
    ]
    if problems:
        raise ConfigError(problems)
    return [kinds[name]() for name in dict.fromkeys(names)]


def _is_installed(package: str) -> bool:
    """A folder `wandb` of earlier runs in the working folder is no package, though Python could import it as one."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def _lines_up_to(path: Path, step: int) -> list[str]:
    """Lines of complete records up to `step`; a record that a killed run left half-written is dropped."""
    kept: list[str] = []
    if not path.is_file():
        return kept
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        with suppress(json.JSONDecodeError):
            if json.loads(line)["step"] <= step and line.endswith("\n"):
                kept.append(line)
    return kept


def _indent(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())
