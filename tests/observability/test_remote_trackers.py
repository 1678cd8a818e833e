"""Trackers that send a run elsewhere, with the real packages writing to this machine."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.observability.mlflow_tracker import MlflowTracker
from agentrl.observability.tracker import RunInfo, Tracker, ValidationConversation
from agentrl.observability.wandb_tracker import WandbTracker

TALK = ValidationConversation("openai/gsm8k", "40 + 2?", "It is 42 €", 1.0)
CONFIG = {"algorithm": {"gamma": 0.5}, "reward_model": {"headers": {"Authorization": "Bearer hush"}}}


def run(folder: Path, resumed_from: int | None = None) -> RunInfo:
    return RunInfo("project", "run", folder, total_steps=4, resumed_from=resumed_from, config=CONFIG)


def texts(folder: Path) -> str:
    """All that stands in the files of a folder."""
    return "\n".join(path.read_text("utf-8", "replace") for path in folder.rglob("*") if path.is_file())


@pytest.fixture(autouse=True)
def on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))  # else in the home folder
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    yield
    mlflow.set_tracking_uri(None)  # MLflow remembers what the variable said


def train(tracker: Tracker, info: RunInfo, steps: range) -> None:
    tracker.on_start(info)
    for step in steps:
        tracker.log({"actor/pg_loss": 0.5 * step, "val-core/openai/gsm8k/reward/mean@1": 0.25}, step)
    tracker.on_validation(steps[-1], [TALK])


class TestWandb:
    def test_metrics_stand_over_training_steps(self, tmp_path: Path) -> None:
        tracker = WandbTracker()
        train(tracker, run(tmp_path), range(1, 4))
        opened = tracker._run
        assert (opened.project, opened.name) == ("project", "run")
        summary = dict(opened.summary)
        assert (summary["actor/pg_loss"], summary["training/step"]) == (1.5, 3)
        assert opened.config["algorithm"] == {"gamma": 0.5}
        assert opened.config["reward_model"] == {"headers": {"Authorization": "***"}}
        tracker.close()
        (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/val/*.json")
        assert json.loads(table.read_text())["data"] == [[3, "openai/gsm8k", "40 + 2?", "It is 42 €", 1.0]]
        assert "hush" not in texts(tmp_path)

    def test_a_resumed_run_goes_on_and_a_new_one_does_not(self, tmp_path: Path) -> None:
        names = []
        for resumed_from in (None, 2, None):
            tracker = WandbTracker()
            train(tracker, run(tmp_path, resumed_from), range(1, 3))
            names.append(tracker._run.id)
            tracker.close()
        assert names[0] == names[1] != names[2]

    def test_what_wandb_refuses_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import wandb

        wandb.teardown()  # it remembers what the variables said
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.setenv("WANDB_API_KEY", "too-short")
        monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
        with pytest.raises(ConfigError, match="WANDB_MODE=offline"):
            WandbTracker().on_start(run(tmp_path))
        wandb.teardown()

    def test_a_run_that_never_began_closes(self) -> None:
        WandbTracker().close()


class TestMlflow:
    def found(self) -> list[Any]:
        import mlflow

        client = mlflow.MlflowClient()
        return list(client.search_runs([client.get_experiment_by_name("project").experiment_id]))

    def test_metrics_stand_over_training_steps(self, tmp_path: Path) -> None:
        import mlflow

        tracker = MlflowTracker()
        train(tracker, run(tmp_path), range(1, 4))
        tracker.close()
        (made,) = self.found()
        assert (made.info.run_name, made.info.status) == ("run", "FINISHED")
        history = mlflow.MlflowClient().get_metric_history(made.info.run_id, "actor/pg_loss")
        assert [(point.step, point.value) for point in history] == [(1, 0.5), (2, 1.0), (3, 1.5)]
        assert made.data.metrics["val-core/openai/gsm8k/reward/mean_at_1"] == 0.25
        (file,) = (tmp_path / "mlruns").rglob("validation/3.json")
        assert json.loads(file.read_text())[0]["output"] == "It is 42 €"
        (config,) = (tmp_path / "mlruns").rglob("config.yaml")
        assert "gamma: 0.5" in config.read_text()
        assert "hush" not in texts(tmp_path)

    def test_a_resumed_run_goes_on_and_a_new_one_does_not(self, tmp_path: Path) -> None:
        for resumed_from, runs in ((None, 1), (2, 1), (None, 2)):
            tracker = MlflowTracker()
            train(tracker, run(tmp_path, resumed_from), range(1, 3))
            assert "RUNNING" in [made.info.status for made in self.found()]
            tracker.close()
            assert len(self.found()) == runs

    def test_a_run_that_an_error_ends_is_marked(self, tmp_path: Path) -> None:
        tracker = MlflowTracker()
        tracker.on_start(run(tmp_path))
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            tracker.close()
        assert [made.info.status for made in self.found()] == ["FAILED"]

    def test_more_metrics_than_one_call_takes(self, tmp_path: Path) -> None:
        tracker = MlflowTracker()
        tracker.on_start(run(tmp_path))
        tracker.log({f"m{number}": number for number in range(1200)}, 1)
        tracker.close()
        (made,) = self.found()
        assert len(made.data.metrics) == 1200

    def test_a_server_that_is_gone_does_not_end_the_run(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        tracker = MlflowTracker()
        tracker.on_start(run(tmp_path))
        tracker._id = "0" * 32
        with caplog.at_level(logging.WARNING):
            tracker.log({"a": 1.0}, 1)
            tracker.close()
        assert "mlflow refused log_batch" in caplog.text

    def test_what_mlflow_refuses_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://x")
        with pytest.raises(ConfigError, match="mlflow cannot open a run"):
            MlflowTracker().on_start(run(tmp_path))
        MlflowTracker().close()
