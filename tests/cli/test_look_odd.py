"""What the commands that look at runs print where names and numbers are odd."""

from __future__ import annotations

import json
import math
from functools import partial

import pytest
from made_runs import record, write_dump, write_run
from typer.testing import CliRunner

from agentrl.cli import app

runner = CliRunner()


def said(*arguments: object, code: int = 0) -> str:
    result = runner.invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("odd", [math.nan, math.inf, -1e308])
def test_numbers_that_are_not_finite_are_listed_and_compared_and_null_in_json(tmp_path, odd):
    run = write_run(tmp_path / "odd", [1e308, odd])
    write_dump(run / "rollouts", 1, [record(1, 0, "q", "x", 1.0)])
    strict = partial(json.loads, parse_constant=pytest.fail)
    for command in (["runs", tmp_path], ["diff", run, run]):
        assert said(*command)
        strict(said(*command, "--json"))


def test_names_of_runs_metrics_and_keys_do_not_command_a_terminal(tmp_path):
    evil = "\x1b]0;owned\x07\u202e"
    runs = [write_run(tmp_path / f"{name}{evil}", [0.1]) for name in ("a", "b")]
    for run in runs:
        row = {"step": 2, f"val-core/{evil}/reward/mean@1": 0.5, f"health/alarm/{evil}": 1.0}
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        write_dump(run / "rollouts", 1, [record(1, 0, "q", "x", 1.0, **{f"part{evil}": 1.0})])
    config = json.loads((runs[0] / "config.yaml").read_text())
    (runs[0] / "config.yaml").write_text(json.dumps({**config, f"key{evil}": 1}))
    for command in (("runs", tmp_path), ("diff", *runs), ("show", runs[0]), ("trace", runs[0])):
        shown = said(*command)
        assert r"\x1b]0;owned\x07\u202e" in shown, command
        assert not {"\x1b", "\x07", "\u202e"} & set(shown), command
    for arguments in (("diff", tmp_path / evil, runs[0]), ("show", tmp_path / evil), ("train", f"x{evil}.yaml")):
        shown = said(*arguments, code=2)
        assert r"\x1b]0;owned\x07\u202e" in shown, arguments
        assert not {"\x1b", "\x07", "\u202e"} & set(shown), arguments
