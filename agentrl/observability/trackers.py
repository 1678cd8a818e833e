"""Trackers: they receive the metrics, rollouts and validation conversations of a run."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError, suggest
from agentrl.types import JsonDict

if TYPE_CHECKING:
    from agentrl.data_proto import DataProto

LOG = logging.getLogger(__name__)
METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a tracker may need before the first step."""

    project: str
    experiment: str
    folder: Path
    total_steps: int
    resumed_from: int | None = None
    """Step of the checkpoint that the run resumes from; None for a new run."""
    config: JsonDict = field(default_factory=dict)
    """The resolved configuration, for trackers that show it elsewhere; see `without_secrets`."""

    def recall(self, name: str) -> str | None:
        """The text that a tracker kept in the run folder, if the run resumes from a checkpoint."""
        file = self.folder / name
        return file.read_text(encoding="utf-8") if self.resumed_from is not None and file.is_file() else None

    def note(self, name: str, text: str) -> None:
        """Keep a text in the run folder for when the run is resumed."""
        (self.folder / name).write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Conversation:
    """One validation conversation, as text."""

    data_source: str
    input: str
    output: str
    score: float


class Tracker:
    """Receives the events of a run. Inherit from it and override what you need; every hook but `log` has a default."""

    def on_start(self, run: RunInfo) -> None:
        """Called once before the first step."""

    def on_stage(self, step: int, stage: str) -> None:
        """Called when a stage (`gen`, `update_actor`, …) of a step begins."""

    def on_rollouts(self, step: int, batch: DataProto) -> None:
        """Called with the trajectories of a training step, before the update."""

    def on_validation(self, step: int, conversations: Sequence[Conversation]) -> None:
        """Called after a validation with the first `trainer.log_val_generations` conversations."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Called once per step with every metric of that step; step 0 is the validation before training."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once at the end of the run, however it ends."""


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

    def on_validation(self, step: int, conversations: Sequence[Conversation]) -> None:
        """Write conversations as text."""
        for number, item in enumerate(conversations):
            text = f"    {item.data_source}, score {item.score:g}\n\n{_indent(item.input)}\n\n{_indent(item.output)}"
            self._writer.add_text(f"validation/{number}", text, step)

    def close(self) -> None:
        """Flush and close."""
        if hasattr(self, "_writer"):
            self._writer.close()


class Trackers(Tracker):
    """Several trackers as one."""

    def __init__(self, members: Sequence[Tracker]) -> None:
        self.members = list(members)

    def on_start(self, run: RunInfo) -> None:
        """Pass on."""
        for member in self.members:
            member.on_start(run)

    def on_stage(self, step: int, stage: str) -> None:
        """Pass on."""
        for member in self.members:
            member.on_stage(step, stage)

    def on_rollouts(self, step: int, batch: DataProto) -> None:
        """Pass on."""
        for member in self.members:
            member.on_rollouts(step, batch)

    def on_validation(self, step: int, conversations: Sequence[Conversation]) -> None:
        """Pass on."""
        for member in self.members:
            member.on_validation(step, conversations)

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Pass on."""
        for member in self.members:
            member.log(metrics, step)

    def close(self) -> None:
        """Pass on."""
        for member in self.members:
            member.close()


def make_trackers(names: Sequence[str]) -> list[Tracker]:
    """Build the trackers that `trainer.logger` names.

    Raises:
        ConfigError: an unknown name, or one whose package is not installed.
    """
    from agentrl.observability.console import ConsoleTracker
    from agentrl.observability.mlflow_tracker import MlflowTracker
    from agentrl.observability.wandb_tracker import WandbTracker

    kinds: dict[str, type[Tracker]] = {
        "console": ConsoleTracker,
        "jsonl": JsonlTracker,
        "tensorboard": TensorboardTracker,
        "wandb": WandbTracker,
        "mlflow": MlflowTracker,
    }
    problems = [
        f"trainer.logger: '{name}' is not a tracker.{suggest(name, kinds)}" for name in names if name not in kinds
    ]
    problems += [
        f"trainer.logger: '{name}' needs the package {name}: pip install 'agentrl[trackers]'"
        for name in ("wandb", "mlflow")
        if name in names and find_spec(name) is None
    ]
    if problems:
        raise ConfigError(problems)
    return [kinds[name]() for name in dict.fromkeys(names)]


def without_secrets(config: Any) -> Any:
    """The configuration with HTTP headers blanked, since they may hold tokens."""
    if isinstance(config, dict):
        return {
            key: dict.fromkeys(value, "***") if key == "headers" and isinstance(value, dict) else without_secrets(value)
            for key, value in config.items()
        }
    return [without_secrets(value) for value in config] if isinstance(config, list) else config


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Read `metrics.jsonl` of a run folder, oldest step first."""
    with (folder / METRICS_FILE).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


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
