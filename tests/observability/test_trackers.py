"""Trackers write what they are given, and a resumed run's log holds every step once."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from agentrl.errors import ConfigError
from agentrl.observability.console import ConsoleTracker
from agentrl.observability.tracker import RunInfo, Tracker, ValidationConversation, without_secrets
from agentrl.observability.trackers import (
    METRICS_FILE,
    JsonlTracker,
    TensorboardTracker,
    Trackers,
    make_trackers,
)


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The lines of a run's log, oldest step first."""
    return [json.loads(line) for line in (folder / METRICS_FILE).read_text(encoding="utf-8").splitlines()]


def run(folder: Path, resumed_from: int | None = None) -> RunInfo:
    return RunInfo("project", "run", folder, total_steps=4, resumed_from=resumed_from)


def test_unknown_logger_names_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'tensorboard'") as caught:
        make_trackers(["console", "tensorbord"])
    assert caught.value.exit_code == 2


def test_jsonl_has_one_line_a_step(tmp_path):
    tracker = JsonlTracker()
    tracker.on_start(run(tmp_path))
    tracker.log({"a/b": 1}, 1)
    tracker.log({"a/b": 0.5}, 2)
    assert read_metrics(tmp_path) == [{"step": 1, "a/b": 1.0}, {"step": 2, "a/b": 0.5}]


def test_resumed_jsonl_drops_steps_that_will_be_made_again(tmp_path):
    lines = [json.dumps({"step": step}) + "\n" for step in (1, 2, 3)]
    (tmp_path / METRICS_FILE).write_text("".join(lines) + '{"step": 4, "sco')
    tracker = JsonlTracker()
    tracker.on_start(run(tmp_path, resumed_from=2))
    tracker.log({}, 3)
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]


def test_new_run_in_an_old_folder_starts_a_new_log(tmp_path):
    (tmp_path / METRICS_FILE).write_text('{"step": 9}\n')
    JsonlTracker().on_start(run(tmp_path))
    assert read_metrics(tmp_path) == []


def test_tensorboard_scalars_and_text_can_be_read_back(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorboardTracker()
    tracker.on_start(run(tmp_path))
    tracker.log({"critic/score/mean": 0.25}, 1)
    tracker.on_validation(1, [ValidationConversation("math", "1+1", "2", 1.0)])
    tracker.on_generations(1, [ValidationConversation("math", "1+2", "3", 1.0)])
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("critic/score/mean")] == [(1, 0.25)]
    for kind in ("validation", "training"):
        assert any(f"{kind}/0" in tag for tag in events.Tags()["tensors"])


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, color_system=None, width=120)


def test_console_prints_one_plain_line_a_step_without_a_terminal(tmp_path):
    screen = console(terminal=False)
    tracker = ConsoleTracker(screen)
    tracker.on_start(run(tmp_path))
    tracker.on_stage(1, "gen")
    tracker.log({"critic/score/mean": 0.25, "timing_s/step": 1.5, "val-core/x/reward/mean@1": 0.5}, 1)
    tracker.close()
    _head, line = screen.file.getvalue().strip().splitlines()
    assert line.startswith("step 1/4  score 0.25  seconds 1.5  val-core/x/reward/mean@1 0.5")


def test_console_shows_a_live_table_on_a_terminal(tmp_path):
    screen = console(terminal=True)
    tracker = ConsoleTracker(screen)
    tracker.on_start(run(tmp_path, resumed_from=2))
    tracker.on_stage(3, "update_actor")
    tracker.log({"critic/score/mean": 0.25}, 3)
    tracker.on_validation(3, [ValidationConversation("math", "one plus [one]", "two", 1.0)])
    tracker.on_generations(3, [ValidationConversation("math", "one plus two", "three", 1.0)])
    tracker.close()
    shown = screen.file.getvalue()
    assert "resumed after step 2" in shown
    assert "step 3: training" in shown
    assert "3/4" in shown
    assert "one plus [one]" in shown
    assert "one plus two" in shown
    assert "rollout of step 3, score 1" in shown


class Fields:
    """The part of a batch that the console reads."""

    def __init__(self, *rows: dict[str, object]) -> None:
        self.non_tensor_batch = {name: [row[name] for row in rows] for name in rows[0]}

    def __len__(self) -> int:
        return len(self.non_tensor_batch["score"])


def test_console_shows_progress_a_conversation_alarms_and_what_is_left(tmp_path):
    screen = console(terminal=True)
    tracker = ConsoleTracker(screen)
    assert not tracker.shows_progress
    tracker.on_start(run(tmp_path))
    assert tracker.shows_progress
    tracker.on_stage(1, "gen")
    tracker.on_progress(3, 8)
    tracker._live.refresh()
    shown = screen.file.getvalue()
    assert "step 1: rolling out" in shown
    assert "trajectories" in shown
    assert "3/8" in shown
    said = [{"role": "user", "content": "What\x1b[2J is [1+1]?"}, {"role": "assistant", "content": "two"}]
    rows = [{"messages": said, "score": 0.5, "stop_reason": "completed"}]
    tracker.on_rollouts(1, Fields(*rows))
    tracker.on_stage(1, "update_actor")
    tracker.log({"timing_s/step": 90.0, "health/alarm/short": 1.0, "rollout/env_error_rate": 0.125}, 1)
    tracker._live.refresh()
    tracker.close()
    shown = screen.file.getvalue()[len(shown) :]
    assert "step 1: score 0.5, completed" in shown
    assert "What\\x1b[2J is [1+1]?" in shown
    assert "two" in shown
    assert "4.5 min left" in shown
    assert "alarm: short" in shown
    assert "failed: 12.5% of the trajectories" in shown
    last = shown.rsplit("stopped", 1)[-1]
    assert "trajectories " not in last.replace("of the trajectories", "")


def test_console_tells_how_long_a_stage_took_last_time(tmp_path):
    screen = console(terminal=True)
    tracker = ConsoleTracker(screen)
    tracker.on_start(run(tmp_path))
    tracker.on_stage(1, "update_actor")
    tracker.log({"timing_s/update_actor": 8.0, "timing_s/adv": 0.1, "timing_s/gen": 30.0}, 1)
    parts = {}
    for stage in ("gen", "adv", "update_actor"):
        tracker.on_stage(2, stage)
        tracker._live.refresh()
        parts[stage] = [task.description for task in tracker._progress.tasks]
    shown = screen.file.getvalue()
    tracker.close()
    assert parts == {
        "gen": ["step 2: rolling out", "trajectories"],
        "adv": ["step 2: advantages"],
        "update_actor": ["step 2: training", "training"],
    }
    assert "last time 30 s" in shown
    assert "last time 8 s" in shown
    assert "0/?" not in shown


def test_console_fills_the_bar_of_a_stage_by_what_it_took_last_time(tmp_path):
    tracker = ConsoleTracker(console(terminal=True))
    tracker.on_start(run(tmp_path))
    now = tracker._progress.get_time()
    tracker._progress.get_time = lambda: now
    tracker.log({"timing_s/update_actor": 8.0, "timing_s/gen": 30.0, "timing_s/testing": 20.0}, 1)
    tracker.log({"timing_s/update_actor": 10.0, "timing_s/gen": 30.0}, 2)  # without a validation

    def shown() -> tuple[float | None, float, str]:
        task = tracker._progress.tasks[-1]
        _, _, bar, _, times = tracker._progress.columns
        return bar.render(task).total, bar.render(task).completed, times.render(task).plain

    tracker.on_stage(3, "update_actor")
    now += 4.0
    assert shown() == (10, 4, "4 s, 6 s left, last time 10 s")
    now += 8.0  # longer than last time
    assert shown() == (None, 0, "12 s, last time 10 s")
    tracker.on_stage(3, "gen")
    now += 10.0
    assert shown() == (30, 10, "10 s, 20 s left, last time 30 s")
    tracker.on_progress(2, 8)  # counted: the bar shows it, the time that is left is still that of the whole stage
    assert shown() == (8, 2, "10 s, 20 s left, last time 30 s")
    now += 30.0
    assert shown() == (8, 2, "40 s, 2 min left, last time 30 s")
    tracker.on_stage(3, "testing")
    now += 5.0
    assert shown() == (20, 5, "5 s, 15 s left, last time 20 s")
    tracker.close()


def test_console_keeps_within_a_small_terminal(tmp_path):
    screen = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=100, height=20)
    tracker = ConsoleTracker(screen)
    tracker.on_start(RunInfo("p", "e", tmp_path, total_steps=30))
    for step in range(1, 21):
        tracker.log({"critic/score/mean": step}, step)
    lines = screen.render_lines(tracker._render())
    text = ["".join(part.text for part in line) for line in lines]
    tracker.close()
    assert len(lines) < 20
    assert any("│   20 │" in line for line in text)
    assert not any("│   16 │" in line for line in text)


def test_console_tells_what_is_left_and_alarms_without_a_terminal(tmp_path):
    screen = console(terminal=False)
    tracker = ConsoleTracker(screen)
    tracker.on_start(run(tmp_path))
    assert not tracker.shows_progress
    tracker.on_rollouts(1, Fields({"messages": [], "score": 0.5}))
    tracker.log({"timing_s/step": 90.0, "health/alarm/short": 1.0}, 1)
    tracker.log({"timing_s/step": 90.0}, 4)
    _head, first, last = screen.file.getvalue().strip().splitlines()
    assert first.endswith("left 4.5 min  alarm: short")
    assert "left" not in last


def test_progress_is_only_asked_for_by_who_shows_it(tmp_path):
    seen = []

    class Shows(Tracker):
        shows_progress = True

        def log(self, metrics, step):
            pass

        def on_progress(self, done, total):
            seen.append((done, total))

    assert Trackers([JsonlTracker()]).progress() is None
    told = Trackers([JsonlTracker(), Shows()]).progress()
    assert told is not None
    told(1, 2)
    assert seen == [(1, 2)]


def test_trackers_pass_everything_on(tmp_path):
    first, second = JsonlTracker(), JsonlTracker()
    both = Trackers([first, second])
    both.on_start(run(tmp_path))
    both.log({"x": 1}, 1)
    both.close()
    assert len(read_metrics(tmp_path)) == 2


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.observability.trackers.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        make_trackers(["console", "wandb", "mlflow", "x"])
    assert [problem.partition(": ")[2].split(".")[0] for problem in caught.value.problems] == [
        "'x' is not a tracker",
        "'wandb' needs the package wandb: pip install 'agentrl[trackers]'",
        "'mlflow' needs the package mlflow: pip install 'agentrl[trackers]'",
    ]


def test_headers_are_not_shown() -> None:
    config = {"a": [{"headers": {"Authorization": "Bearer x"}, "headers_seen": 3}], "headers": None}
    assert without_secrets(config) == {
        "a": [{"headers": {"Authorization": "***"}, "headers_seen": 3}],
        "headers": None,
    }
