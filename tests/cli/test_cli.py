"""The command line: quick, readable when something is wrong, and its exit codes mean something."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from agentrl import __version__
from agentrl.cli import app
from agentrl.cli.errors import ErrorGroup, set_debug
from agentrl.config.reference import config_reference
from agentrl.errors import AgentRLError, CheckpointError, ConfigError, EngineUnavailable, FailureBudgetError

ROOT = Path(__file__).resolve().parents[2]
runner = CliRunner()


def run_failing(error: BaseException) -> Result:
    """A command of agentrl's kind that raises `error`."""
    failing = typer.Typer(cls=ErrorGroup)

    @failing.callback()
    def nothing() -> None:
        pass

    @failing.command()
    def fail() -> None:
        raise error

    return runner.invoke(failing, ["fail"])


HEAVY = ("torch", "ray", "transformers", "pydantic", "pyarrow", "fastapi", "numpy")


def agentrl(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from agentrl.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, check=False)


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from agentrl.cli import app; app(['--help'], standalone_mode=False); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    for command in (
        "train",
        "sft",
        "data",
        "serve",
        "check",
        "runs",
        "show",
        "diff",
        "replay",
        "doctor",
        "export",
        "docs",
        "demo",
    ):
        assert f" {command} " in result.stdout
    assert result.stdout.rstrip().endswith("[]")


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.stdout.strip()) == (0, __version__)


def test_a_mistake_is_one_message_without_a_traceback(tmp_path: Path) -> None:
    result = agentrl("train", "data.train_files=x.parquet", "trainer.total_epoch=3", "data.seed=x", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "Did you mean 'trainer.total_epochs'?" in result.stderr
    assert "data.seed: got 'x', wanted a whole number" in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback_too() -> None:
    result = runner.invoke(app, ["--debug", "train", "nowhere"])
    set_debug(False)
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.rstrip().splitlines()[-1].startswith("error: nowhere does not exist")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (EngineUnavailable("x"), 3),
        (FailureBudgetError("x"), 3),
        (CheckpointError("x"), 4),
        (AgentRLError("x"), 1),
        (KeyboardInterrupt(), 130),
        (typer.Abort(), 130),
    ],
)
def test_exit_codes(error: BaseException, code: int) -> None:
    result = run_failing(error)
    assert result.exit_code == code
    assert result.stderr.strip() == ("interrupted" if code == 130 else "error: x")


def test_a_full_disk_is_a_message_wherever_it_is_met() -> None:
    def error(number: int) -> OSError:
        return OSError(number, os.strerror(number), "dumps/3.jsonl")

    result = run_failing(error(errno.ENOSPC))
    assert result.exit_code == 4
    assert result.stderr.strip() == "error: cannot write dumps/3.jsonl: No space left on device"
    assert isinstance(run_failing(error(errno.EBADF)).exception, OSError)


def test_a_bug_keeps_its_traceback() -> None:
    result = run_failing(ZeroDivisionError())
    assert isinstance(result.exception, ZeroDivisionError)


def test_sft_is_checked_by_its_own_keys() -> None:
    result = runner.invoke(app, ["sft", "data.train_batch_siz=3"])
    assert result.exit_code == 2
    assert "Did you mean 'data.train_batch_size'?" in result.stderr
    assert "model.path: not given" in result.stderr


def test_docs_config(tmp_path: Path) -> None:
    assert runner.invoke(app, ["docs", "config"]).stdout == config_reference()
    out = tmp_path / "sub" / "page.md"
    assert runner.invoke(app, ["docs", "config", "--out", str(out)]).exit_code == 0
    assert out.read_text(encoding="utf-8") == config_reference()
    (tmp_path / "file").write_text("")
    result = runner.invoke(app, ["docs", "config", "--out", str(tmp_path / "file" / "page.md")])
    assert (result.exit_code, "cannot write" in result.stderr) == (2, True)


def test_serve_engine_hands_its_arguments_on(tmp_path: Path) -> None:
    result = runner.invoke(app, ["serve", "engine", "--help"])
    assert result.exit_code == 0
    assert "--max-running-requests" in result.stdout
    assert runner.invoke(app, ["serve", "engine", "--port", "1"]).exit_code == 2
    missing = agentrl("serve", "engine", "--model", str(tmp_path / "nowhere"), "--port", "0")
    assert missing.returncode == 2
    assert "nowhere" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_python_m_agentrl() -> None:
    command = [sys.executable, "-m", "agentrl", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.strip() == __version__


@pytest.mark.parametrize("command", [["-m", "agentrl"], ["bin/agentrl"]], ids=["module", "command"])
def test_modules_of_the_folder_are_found(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "bin").mkdir()  # Python puts the folder of a command first on the import path, not the working folder
    (tmp_path / "bin" / "agentrl").write_text("from agentrl.cli import main; main()")
    (tmp_path / "my_tools.py").write_text("def shout(text: str) -> str:\n    'Shout.'\n    return text.upper()\n")
    elsewhere = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, *command, "plugins", "check", "my_tools.shout", "--kind", "tools"],
        cwd=tmp_path,
        env={**elsewhere, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "my_tools.shout: 7 of 7 hold" in done.stdout, done.stdout + done.stderr


def test_log_lines_are_not_broken_off_a_terminal() -> None:
    code = (
        "import logging; from agentrl.cli.output import set_up_logging; set_up_logging(20); set_up_logging(20); "
        "logging.getLogger('agentrl.trainer').warning('one [bold]word[/] ' * 30)"
    )
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING  " + re.escape("one [bold]word[/] " * 30), line)
