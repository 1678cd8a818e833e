"""MLflow: metrics over training steps; the configuration and validation conversations as artifacts."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from agentrl.errors import ConfigError
from agentrl.observability.tracker import RunInfo, Tracker, ValidationConversation, without_secrets

logger = logging.getLogger(__name__)
_ID_FILE = "mlflow_run_id"
_NOT_IN_NAMES = re.compile(r"[^\w\-. /:]", re.ASCII)
_AT_ONCE = 1000
"""Most metrics that a server accepts in one call."""


class MlflowTracker(Tracker):
    """Logs to the experiment `trainer.project_name`; a resumed run continues the same MLflow run.

    MLflow's own variables apply: `MLFLOW_TRACKING_URI` (default: a database in the current folder) and
    `MLFLOW_TRACKING_TOKEN`. If the server refuses data during training, the data is lost, a warning is logged and
    training continues.
    """

    def __init__(self) -> None:
        self._client: Any = None
        self._id = ""

    def on_start(self, run: RunInfo) -> None:
        """Open the run.

        Raises:
            ConfigError: MLflow cannot open a run; the message says why.
        """
        import mlflow

        try:
            client = mlflow.MlflowClient()
            self._id = run.recall(_ID_FILE) or _create(client, run)
            client.update_run(self._id, status="RUNNING")
            client.log_dict(self._id, without_secrets(run.config), "config.yaml")
        except mlflow.MlflowException as error:
            raise ConfigError(f"trainer.logger: mlflow cannot open a run: {error}") from error
        run.note(_ID_FILE, self._id)
        self._client = client

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Send all metrics of a step at once. MLflow allows few special characters in names: `@` becomes `_at_`."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        names = {name: _NOT_IN_NAMES.sub("_", name.replace("@", "_at_")) for name in metrics}
        sent = [Metric(names[name], float(value), now, step) for name, value in metrics.items()]
        for start in range(0, len(sent), _AT_ONCE):
            self._send("log_batch", metrics=sent[start : start + _AT_ONCE])

    def on_validation(self, step: int, conversations: Sequence[ValidationConversation]) -> None:
        """Send conversations as `validation/STEP.json`."""
        self._show("validation", step, conversations)

    def on_generations(self, step: int, conversations: Sequence[ValidationConversation]) -> None:
        """Send conversations as `training/STEP.json`."""
        self._show("training", step, conversations)

    def _show(self, kind: str, step: int, conversations: Sequence[ValidationConversation]) -> None:
        rows = [asdict(conversation) for conversation in conversations]
        self._send("log_text", json.dumps(rows, ensure_ascii=False, indent=1), f"{kind}/{step}.json")

    def close(self) -> None:
        """Mark the run as finished, or as failed if an error ended it."""
        if self._client is not None:
            self._send("set_terminated", "FAILED" if sys.exc_info()[0] else "FINISHED")

    def _send(self, method: str, *arguments: Any, **named: Any) -> None:
        from mlflow import MlflowException

        try:
            getattr(self._client, method)(self._id, *arguments, **named)
        except MlflowException as error:
            logger.warning("mlflow refused %s: %s", method, error)


def _create(client: Any, run: RunInfo) -> str:
    experiment = client.get_experiment_by_name(run.project)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(run.project)
    created: str = client.create_run(experiment_id, run_name=run.experiment).info.run_id
    return created
