"""The interface of a tracker: it receives every step, every batch of rollouts and every validation of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.types import JsonDict

if TYPE_CHECKING:
    from agentrl.data_proto import DataProto


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
class ValidationConversation:
    """One conversation of a validation or of a training step, as text."""

    data_source: str
    input: str
    output: str
    score: float


class Tracker:
    """Receives the events of a run. Inherit from it and override what you need; every hook but `log` has a default."""

    @property
    def shows_progress(self) -> bool:
        """Whether it wants `on_progress`, once `on_start` was called."""
        return False

    def on_start(self, run: RunInfo) -> None:
        """Called once before the first step."""

    def on_progress(self, done: int, total: int) -> None:
        """Called about once a second while the trajectories of a step or a validation run: how many have ended."""

    def on_stage(self, step: int, stage: str) -> None:
        """Called when a stage (`gen`, `update_actor`, …) of a step begins."""

    def on_rollouts(self, step: int, batch: DataProto) -> None:
        """Called with the trajectories of a training step, before the update."""

    def on_validation(self, step: int, conversations: Sequence[ValidationConversation]) -> None:
        """Called after a validation with the first `trainer.log_val_generations` conversations."""

    def on_generations(self, step: int, conversations: Sequence[ValidationConversation]) -> None:
        """Called after a training step's rollouts with the first `trainer.log_train_generations` conversations."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Called once per step with every metric of that step; step 0 is the validation before training."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once at the end of the run, however it ends."""


def without_secrets(config: Any) -> Any:
    """The configuration with HTTP headers blanked, since they may hold tokens."""
    if isinstance(config, dict):
        return {
            key: dict.fromkeys(value, "***") if key == "headers" and isinstance(value, dict) else without_secrets(value)
            for key, value in config.items()
        }
    return [without_secrets(value) for value in config] if isinstance(config, list) else config
