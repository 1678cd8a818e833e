"""Runs are found and read from their folders alone, while they go on and after they ended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, EngineError, UserInputError
from agentrl.observability import run_state
from agentrl.observability.run_folder import CONFIG_FILE, METRICS_FILE, MetricsLog, RunFolder, find_runs, open_run
from agentrl.observability.run_state import STATE_FILE, RunStateFile, State, read_state
from agentrl.observability.tracker import RunInfo


def write_metrics(folder: Path, *steps: int, end: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, "critic/score/mean": step / 10}) + "\n" for step in steps]
    (folder / METRICS_FILE).write_text("".join(lines) + end)
    return folder


def state_of(folder: Path) -> run_state.RunState:
    found = read_state(folder)
    assert found is not None
    return found


def test_a_run_tells_how_it_stands_while_it_goes_on(tmp_path):
    with RunStateFile(tmp_path, 4) as writer:
        before = state_of(tmp_path)
        assert (before.state, before.step, before.total_steps) == (State.RUNNING, 0, 4)
        writer.on_start(RunInfo("p", "e", tmp_path, 4, resumed_from=2))
        assert state_of(tmp_path).step == 2
        writer.log({}, 3)
        assert state_of(tmp_path).step == 3
    after = state_of(tmp_path)
    assert (after.state, after.step, after.error) == (State.FINISHED, 3, None)
    assert after.began <= after.updated
    assert sorted(os.listdir(tmp_path)) == [STATE_FILE]


def test_a_run_tells_after_which_steps_it_was_resumed(tmp_path):
    def started(resumed_from: int | None, stop: int) -> list[int]:
        with RunStateFile(tmp_path, 20) as writer:
            writer.on_start(RunInfo("p", "e", tmp_path, 20, resumed_from=resumed_from))
            writer.log({}, stop)
        return list(state_of(tmp_path).resumed)

    assert started(None, 5) == []
    assert started(4, 9) == [4]
    assert started(8, 12) == [4, 8]
    assert started(8, 12) == [4, 8, 8]
    assert started(6, 12) == [4, 6], "the steps after it ran again"
    assert started(None, 3) == [], "a new run in the same folder"
    (tmp_path / STATE_FILE).write_text("{")
    assert started(2, 3) == [2]


@pytest.mark.parametrize(
    ("error", "state", "told"),
    [
        (KeyboardInterrupt(), State.STOPPED, None),
        (EngineError("no engine is left"), State.FAILED, "no engine is left"),
        (ZeroDivisionError("1/0"), State.FAILED, "1/0"),
    ],
)
def test_a_run_tells_how_it_ended(tmp_path, error, state, told):
    with pytest.raises(type(error)), RunStateFile(tmp_path, 4):
        raise error
    found = state_of(tmp_path)
    assert found.state is state
    assert (found.error is None) if told is None else (told in found.error)


def test_a_run_whose_process_is_gone_was_killed(tmp_path):
    script = (
        "import os; from pathlib import Path; from agentrl.observability.run_state import RunStateFile;"
        f"RunStateFile(Path({str(tmp_path)!r}), 4).__enter__(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert state_of(tmp_path).state is State.KILLED


def test_another_process_with_its_number_is_not_the_run(tmp_path):
    RunStateFile(tmp_path, 4).__enter__()
    file = tmp_path / STATE_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), "process_began": 1.0}))
    assert state_of(tmp_path).state is State.KILLED


def test_a_run_on_another_machine_is_judged_by_its_last_news(tmp_path):
    RunStateFile(tmp_path, 4).__enter__()
    file = tmp_path / STATE_FILE
    told = {**json.loads(file.read_text()), "machine": "elsewhere", "pid": 1}
    file.write_text(json.dumps(told))
    assert state_of(tmp_path).state is State.RUNNING
    file.write_text(json.dumps({**told, "updated": time.time() - 2 * run_state.NO_NEWS_S}))
    assert state_of(tmp_path).state is State.UNKNOWN


def test_a_folder_that_cannot_be_written_ends_no_run(tmp_path, caplog):
    file = tmp_path / "file"
    file.touch()
    with RunStateFile(file / "run", 4) as writer:
        writer.log({}, 1)
    assert "cannot write" in caplog.text


WHOLE = {"state": "running", "step": 1, "total_steps": 3, "began": 1.0, "updated": 2.0, "pid": 1, "process_began": 1.0}
DAMAGED = [{"step": "x"}, {"total_steps": 0.5}, {"updated": "y"}, {"pid": -5}, {"process_began": "z"}, {"error": {}}]
DAMAGED += [{"resumed": ["x"]}, {"resumed": 3}]


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"state": "well"}', '{"state": "running"}', "{", *(json.dumps(WHOLE | wrong) for wrong in DAMAGED)],
)
def test_a_damaged_state_is_named(tmp_path, content):
    (tmp_path / STATE_FILE).write_text(content)
    with pytest.raises(UserInputError, match=r"run_state\.json is not the state of a run"):
        read_state(tmp_path)


def test_a_run_of_an_earlier_version_is_judged_by_its_metrics(tmp_path):
    write_metrics(tmp_path, 0, 1, 2)
    assert RunFolder(tmp_path).state().state is State.UNKNOWN
    (tmp_path / CONFIG_FILE).write_text("trainer: {total_training_steps: 2}")
    state = RunFolder(tmp_path).state()
    assert (state.state, state.step, state.total_steps) == (State.FINISHED, 2, 2)
    (tmp_path / CONFIG_FILE).write_text("trainer: {total_training_steps: 3}")
    assert RunFolder(tmp_path).state().state is State.UNKNOWN


def test_runs_are_found_in_folders_of_folders(tmp_path):
    write_metrics(tmp_path / "b" / "exp", 1)
    write_metrics(tmp_path / "a", 1)
    write_metrics(tmp_path / "a" / "inner", 1)  # part of a run is no run
    write_metrics(tmp_path / ".hidden", 1)
    (tmp_path / "quiet" / "logs").mkdir(parents=True)
    (tmp_path / "quiet" / CONFIG_FILE).touch()
    (tmp_path / "no_run").mkdir()
    (tmp_path / "no_run" / CONFIG_FILE).touch()
    assert [str(run.path.relative_to(tmp_path)) for run in find_runs(tmp_path)] == ["a", "b/exp", "quiet"]
    assert [run.path for run in find_runs(tmp_path / "a")] == [tmp_path / "a"]
    with pytest.raises(UserInputError, match="No such file or directory, wanted a folder of runs"):
        find_runs(tmp_path / "none")


def test_open_run_says_what_it_found_instead(tmp_path):
    run = write_metrics(tmp_path / "runs" / "one", 1)
    (run / "global_step_1").mkdir()
    assert open_run(run).path == open_run(run / "global_step_1").path == run
    for given, said in (
        ("none", "none does not exist: wanted a run folder"),
        ("runs", "runs is not a run folder: it holds no metrics.jsonl. Did you mean .*runs/one?"),
        ("runs/one/metrics.jsonl", "is a file: wanted a run folder"),
    ):
        with pytest.raises(UserInputError, match=said):
            open_run(tmp_path / given)


def test_metrics_grow_and_start_again(tmp_path):
    log = MetricsLog(write_metrics(tmp_path, 1, 2, end='{"step": 3, "sc') / METRICS_FILE)
    assert log.poll()
    assert [row["step"] for row in log.rows] == [1, 2]
    assert not log.poll()
    write_metrics(tmp_path, 1, 2, 3)
    assert log.poll()
    assert [row["step"] for row in log.rows] == [1, 2, 3]
    write_metrics(tmp_path, 1, 4, 5, 6, 7)  # resumed after step 1, and further than before
    assert log.poll()
    assert [row["step"] for row in log.rows] == [1, 4, 5, 6, 7]
    write_metrics(tmp_path, 1)
    assert log.poll()
    assert [row["step"] for row in log.rows] == [1]


def test_metrics_that_are_no_numbers_still_read(tmp_path):
    (tmp_path / METRICS_FILE).write_text('{"step": 1, "a": NaN, "b": Infinity}\n')
    (row,) = RunFolder(tmp_path).metrics().rows
    assert str(row) == "{'step': 1.0, 'a': nan, 'b': inf}"
    (tmp_path / METRICS_FILE).write_text('{"step": 1}\n{"step": "x"}\n')
    with pytest.raises(UserInputError, match=r"metrics\.jsonl, line 2: got .*step.*wanted a JSON object"):
        RunFolder(tmp_path).metrics()


@pytest.mark.parametrize("line", ["{}", '{"a": 1}', '{"step": NaN}', '{"step": 1, "a": 1' + "0" * 400 + "}"])
def test_a_row_without_a_step_or_with_a_number_that_no_float_holds_is_named(tmp_path, line):
    (tmp_path / METRICS_FILE).write_text('{"step": 1}\n' + line + "\n")
    with pytest.raises(UserInputError, match=r"metrics\.jsonl, line 2: got .*wanted a JSON object"):
        RunFolder(tmp_path).metrics()


def test_settings_of_a_run(tmp_path):
    (tmp_path / CONFIG_FILE).write_text("trainer: {save_freq: 5}")
    run = RunFolder(tmp_path)
    assert run.setting("trainer.save_freq") == 5
    assert run.setting("trainer.nothing") is run.setting("trainer.save_freq.deeper") is None
    (tmp_path / CONFIG_FILE).write_text("- a list")
    with pytest.raises(ConfigError, match="got list, wanted the configuration of a run"):
        _ = RunFolder(tmp_path).config


def test_dumps_are_found_where_the_configuration_says_and_beside_a_run_that_moved(tmp_path):
    run, elsewhere = write_metrics(tmp_path / "run", 1), tmp_path / "elsewhere"
    for folder in (run / "mine", elsewhere):
        folder.mkdir()
        for name in ("10.jsonl", "2.jsonl", "notes.jsonl", ".3.jsonl.part"):
            (folder / name).touch()
    settings = {"default_local_dir": str(run), "rollout_data_dir": f"{run}/mine", "validation_data_dir": str(elsewhere)}
    (run / CONFIG_FILE).write_text(json.dumps({"trainer": settings}))
    assert RunFolder(run).dumps("rollouts") == {2: run / "mine" / "2.jsonl", 10: run / "mine" / "10.jsonl"}
    assert RunFolder(run).dumps("validation")[2].parent == elsewhere
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    assert RunFolder(copy).dump_folder("rollouts") == copy / "mine"
    shutil.rmtree(elsewhere)
    assert RunFolder(run).dump_folder("validation") is None
    (run / "validation").mkdir()
    assert RunFolder(run).dump_folder("validation") == run / "validation"
