"""What a tracker is: it hears of every step, every batch of rollouts and every validation of a run."""

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
    """What a tracker may want to know before the first step."""

    project: str
    experiment: str
    folder: Path
    total_steps: int
    resumed_from: int | None = None
    """Step of the checkpoint that the run goes on from; None for a new run."""
    config: JsonDict = field(default_factory=dict)
    """The resolved configuration, for trackers that show it elsewhere; see `without_secrets`."""

    def recall(self, name: str) -> str | None:
        """What a tracker noted in the folder of this run, if it goes on from a checkpoint."""
        file = self.folder / name
        return file.read_text(encoding="utf-8") if self.resumed_from is not None and file.is_file() else None

    def note(self, name: str, text: str) -> None:
        """Keep a text in the folder for when the run goes on."""
        (self.folder / name).write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class ValidationConversation:
    """One validation conversation, as text."""

    data_source: str
    input: str
    output: str
    score: float


class Tracker:
    """Receives what happens in a run. Inherit from it and override what you need; every hook has a default."""

    def on_start(self, run: RunInfo) -> None:
        """Called once before the first step."""

    def on_stage(self, step: int, stage: str) -> None:
        """Called as a stage (`gen`, `update_actor`, …) of a step begins."""

    def on_rollouts(self, step: int, batch: DataProto) -> None:
        """Called with the trajectories of a training step, before the update."""

    def on_validation(self, step: int, conversations: Sequence[ValidationConversation]) -> None:
        """Called after a validation with its first `trainer.log_val_generations` conversations."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Called once a step with every number of that step; step 0 holds the validation before training."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once at the end of the run, however it ends."""


def without_secrets(config: Any) -> Any:
    """A configuration whose HTTP headers, which may hold tokens, are blanked."""
    if isinstance(config, dict):
        return {
            key: dict.fromkeys(value, "***") if key == "headers" and isinstance(value, dict) else without_secrets(value)
            for key, value in config.items()
        }
    return [without_secrets(value) for value in config] if isinstance(config, list) else config
