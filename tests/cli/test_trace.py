"""`agentrl trace`: a run's time by phase, from its own metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.cli.output import LEVEL_VARIABLE

runner = CliRunner()
STEPS = [
    {"step": 0, "val-core/x/reward/mean@1": 0.5},
    {"step": 1, "timing_s/step": 10.0, "timing_s/gen": 6.0, "timing_s/update_actor": 3.0},
    {
        "step": 2,
        "timing_s/step": 6.0,
        "timing_s/gen": 2.0,
        "timing_s/update_actor": 3.0,
        "timing_s/testing": 0.8,
        "timing_s/agent_loop/generate_sequences/mean": 1.5,
        "timing_s/agent_loop/tool_calls/mean": 0.25,
        "timing_per_token_ms/gen": 9.0,
        "perf/throughput": 100.0,
    },
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "one"
    (folder / "global_step_2").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, STEPS)) + "\n")
    return folder


def table(*arguments: str) -> tuple[str, dict[str, list[str]]]:
    """All that is printed, and the table's cells by phase."""
    result = runner.invoke(app, ["trace", *arguments], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.output.splitlines()]
    return result.output, {row[0]: row[1:] for row in cells if row}


def test_phases_of_a_step(run: Path) -> None:
    shown, phases = table(str(run))
    assert "2 steps, 1 to 2, 8 s each, 100 tokens/s per rank" in shown
    assert list(phases) == ["gen", "update_actor", "testing", "(between phases)"]
    assert phases["gen"] == ["4.000", "50.0%", "6.000", "2"]
    assert phases["update_actor"] == ["3.000", "37.5%", "3.000", "2"]
    assert phases["testing"] == ["0.400", "5.0%", "0.800", "1"]
    assert phases["(between phases)"][:2] == ["0.600", "7.5%"]
    assert "an average trajectory waits for the engine 1.5 s, waits for tools 0.25 s." in shown


def test_the_newest_steps_of_a_checkpoints_run(run: Path) -> None:
    shown, phases = table(str(run / "global_step_2"), "--last", "1")
    assert "step 2, 6 s each" in shown
    assert phases["gen"][:2] == ["2.000", "33.3%"]


def test_profiles_and_a_line_that_is_still_being_written(run: Path) -> None:
    trace = run / "profile" / "step_2" / "rank_0.json"
    trace.parent.mkdir(parents=True)
    trace.touch()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "timing_s/st')
    shown, _ = table(str(run))
    assert f"Profiles of single steps: {trace}" in shown
    assert "1 to 2" in shown


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("nothing", "nothing does not exist: wanted a run folder (trainer.default_local_dir)"),
        ("runs", "runs is not a run folder: it holds no metrics.jsonl. Did you mean"),
        ("empty", "empty is not a run folder: it holds no metrics.jsonl."),
        ("quiet", "quiet has no metrics.jsonl: the run wrote none, because trainer.logger did not name jsonl"),
        ("started", "holds no finished training step, so there is no time to tell"),
        ("broken", "metrics.jsonl, line 1: got 'x', wanted a JSON object"),
    ],
)
def test_a_folder_that_is_no_run(run: Path, tmp_path: Path, folder: str, message: str) -> None:
    for name in ("empty", "quiet", "started", "broken"):
        (tmp_path / name).mkdir()
    (tmp_path / "quiet" / "config.yaml").touch()
    (tmp_path / "started" / "metrics.jsonl").write_text(json.dumps(STEPS[0]) + "\n")
    (tmp_path / "broken" / "metrics.jsonl").write_text("x\n{}\n")
    result = runner.invoke(app, ["trace", str(tmp_path / folder)])
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", "")


def test_the_lowest_level_that_is_shown(run: Path) -> None:
    import logging

    logger = logging.getLogger("agentrl")
    before = logger.level
    try:
        for given, options, level in (("", [], 20), ("WARNING", [], 30), ("debug", [], 10), ("error", ["--debug"], 10)):
            result = runner.invoke(app, [*options, "trace", str(run)], env={LEVEL_VARIABLE: given})
            assert result.exit_code == 0
            assert logger.level == level
        result = runner.invoke(app, ["trace", str(run)], env={LEVEL_VARIABLE: "warn1ng"})
        assert result.exit_code == 2
        assert "the environment variable AGENTRL_LOG_LEVEL: got 'warn1ng'. Did you mean 'warning'?" in result.stderr
    finally:
        logger.setLevel(level=before)
        runner.invoke(app, ["trace", str(run)])
