"""Weights & Biases: metrics over training steps, the configuration, validation conversations as a table."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from typing import Any

from agentrl.errors import ConfigError
from agentrl.observability.tracker import RunInfo, Tracker, ValidationConversation, without_secrets

_ID_FILE = "wandb_run_id"
_STEP = "training/step"
"""The x axis. wandb's own step can only grow, but a resumed run repeats some steps."""


class WandbTracker(Tracker):
    """Logs to the project `trainer.project_name`; a resumed run continues the same wandb run.

    wandb's own variables apply: `WANDB_MODE=offline`, `WANDB_ENTITY`, `WANDB_BASE_URL`, `WANDB_API_KEY`.
    """

    def __init__(self) -> None:
        self._run: Any = None

    def on_start(self, run: RunInfo) -> None:
        """Open the run.

        Raises:
            ConfigError: wandb cannot open a run; the message says why.
        """
        import wandb

        try:
            self._run = wandb.init(
                project=run.project,
                name=run.experiment,
                dir=run.folder,
                id=run.recall(_ID_FILE) or secrets.token_hex(4),
                resume="allow",
                config=without_secrets(run.config),
            )
        except wandb.Error as error:
            raise ConfigError(
                f"trainer.logger: wandb cannot open a run: {error}. Without a connection, set WANDB_MODE=offline"
            ) from error
        run.note(_ID_FILE, self._run.id)
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Send all metrics of a step at once."""
        self._run.log({**metrics, _STEP: step})

    def on_validation(self, step: int, conversations: Sequence[ValidationConversation]) -> None:
        """Send conversations as the table `val/generations`."""
        self._show("val", step, conversations)

    def on_generations(self, step: int, conversations: Sequence[ValidationConversation]) -> None:
        """Send conversations as the table `train/generations`."""
        self._show("train", step, conversations)

    def _show(self, kind: str, step: int, conversations: Sequence[ValidationConversation]) -> None:
        import wandb

        rows = [[step, item.data_source, item.input, item.output, item.score] for item in conversations]
        table = wandb.Table(columns=["step", "data_source", "input", "output", "score"], data=rows)
        self._run.log({f"{kind}/generations": table, _STEP: step})

    def close(self) -> None:
        """Send the rest; a run that an error ended is marked as failed."""
        if self._run is not None:
            self._run.finish(exit_code=int(sys.exc_info()[0] is not None))
