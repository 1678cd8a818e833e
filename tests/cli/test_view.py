"""`agentrl view` as a user starts it: it serves until Ctrl-C, and says what is wrong with what it was given."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli import app

runner = CliRunner()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "outputs" / "run"
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.yaml").write_text("trainer: {total_training_steps: 1}\n")
    (folder / "metrics.jsonl").write_text('{"step": 1, "critic/score/mean": 0.5}\n')
    (folder / "rollouts" / "1.jsonl").write_text(json.dumps({"input": "Q", "output": "A", "score": 1.0}) + "\n")
    return folder


@contextmanager
def viewing(*arguments: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and the address that it prints."""
    command = [sys.executable, "-c", "from agentrl.cli import main; main()", "view", "--no-open", *arguments]
    process = subprocess.Popen(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + process.communicate()[1]
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def asked(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=20) as answer:
        return bytes(answer.read())


def test_it_serves_until_ctrl_c(run: Path) -> None:
    with viewing(cwd=run.parents[1]) as (process, address):
        assert address.startswith("http://127.0.0.1:")
        (found,) = json.loads(asked(f"{address}api/runs"))
        assert (found["id"], found["reward"]) == ("run", 0.5)
        shown = json.loads(asked(f"{address}api/runs/run/trajectories"))
        assert (shown["total"], shown["complete"]) == (1, True)
        assert b"<html" in asked(address)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_another_address_has_a_token(run: Path) -> None:
    with viewing(str(run), "--host", "0.0.0.0", cwd=run) as (process, address):
        found = re.fullmatch(r"http://[^:]+:(\d+)/\?token=([\w-]{32})", address)
        assert found, address
        with pytest.raises(urllib.error.HTTPError, match="401"):
            asked(f"http://127.0.0.1:{found[1]}/api/runs")
        request = urllib.request.Request(
            f"http://127.0.0.1:{found[1]}/api/runs", headers={"Authorization": f"Bearer {found[2]}"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nowhere"], "nowhere does not exist: wanted a run folder"),
        (["."], "is not a run folder"),
        (["run", "--token", "short"], "--token: got 5 characters, wanted at least 8"),
        (["run", "--token", "пароль-длинный"], "--token: got 'пароль-длинный', wanted letters"),
        (["run", "--token", "two words"], "--token: got 'two words', wanted letters"),
        (["run", "--host", "a" * 70], f"cannot listen on {'a' * 70}:0"),
        (["run", "--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid:0"),
    ],
)
def test_what_cannot_be_shown(run: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], error: str) -> None:
    (run / "elsewhere").mkdir()
    monkeypatch.chdir(run.parent if arguments[0] == "run" else run / "elsewhere")
    result = runner.invoke(app, ["view", "--no-open", *arguments])
    assert (result.exit_code, error in result.output) == (2, True), result.output


def test_a_port_that_is_taken(run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = runner.invoke(app, ["view", str(run), "--no-open", "--port", port])
    assert (result.exit_code, f"cannot listen on 127.0.0.1:{port}" in result.output) == (2, True), result.output
