"""`agentrl doctor`: each thing that it looks at, whole and broken."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from made_runs import write_run
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.cli.doctor import command, mistakes
from agentrl.cli.doctor.findings import Finding, Severity, ok
from agentrl.config import RunConfig, load_config
from agentrl.data.preprocess.arithmetic import write_arithmetic
from agentrl.observability.run_state import RunStateFile

runner = CliRunner()
Usage = namedtuple("Usage", "total used free")


def told(*arguments: str, code: int) -> list[Finding]:
    result = runner.invoke(app, ["doctor", *map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return [Finding(**{**found, "verdict": Severity(found["verdict"])}) for found in json.loads(result.stdout)]


def bad(findings: list[Finding]) -> list[Finding]:
    return [found for found in findings if found.verdict is not Severity.OK]


@pytest.fixture(autouse=True)
def _healthy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command on a machine that has all it needs: which one runs these tests does not matter."""
    monkeypatch.setattr(command, "check_machine", lambda in_flight=None: iter([ok("limits", f"{in_flight} at a time")]))


@pytest.fixture
def recipe(tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that has nothing against it."""
    monkeypatch.chdir(tmp_path)
    write_arithmetic(tmp_path, train=50, test=8, seed=1)
    path = tmp_path / "run.yaml"
    path.write_text(
        "data: {train_files: train.parquet, val_files: test.parquet, train_batch_size: 16, max_prompt_length: 900}\n"
        "actor_rollout_ref:\n"
        f"  model: {{path: {tiny_model_dir}}}\n"
        "  actor: {ppo_mini_batch_size: 8}\n"
        "  rollout: {n: 4, name: embedded, agent: {max_in_flight: 64},\n"
        "    multi_turn: {tool_config_path: tools/calculator.yaml}}\n"
        "trainer: {total_epochs: 2, device: cpu, backend: local, test_freq: 2, save_freq: 2,\n"
        "  logger: [console, jsonl],\n"
        "  default_local_dir: out/run, rollout_data_dir: out/run/rollouts}\n"
    )
    return path


@pytest.fixture
def config(recipe: Path) -> RunConfig:
    return load_config(recipe)


def changed(config: RunConfig, recipe: Path, *overrides: str) -> RunConfig:
    return load_config(recipe, list(overrides))


# --- the whole command --------------------------------------------------------------------------------------------


def test_every_part_of_a_run_is_looked_at(recipe):
    found = told(recipe, code=0)
    assert not [item for item in found if item.verdict is Severity.WRONG]
    assert {item.topic for item in found} >= {
        "installation", "limits", "configuration", "plan", "engines", "services", "models and rows", "scores",
        "mistakes",
    }  # fmt: skip
    texts = {item.topic: item.text for item in found}
    assert texts["limits"] == "64 at a time"
    assert texts["models and rows"] == "50 rows, 8 to validate on, 6 steps; model, template and plug-ins load"
    assert texts["scores"] == "16 right answers score 1, and wrong ones less"
    assert texts["mistakes"] == "none of the 10 usual ones"


def test_a_wrong_line_is_exit_code_1_and_says_what_to_do(recipe):
    result = runner.invoke(app, ["doctor", str(recipe), "actor_rollout_ref.model.path=nowhere"])
    assert result.exit_code == 1
    assert "wrong models and rows" in result.stdout
    assert "-> mend it; `agentrl train CONFIG --dry-run` checks this alone" in result.stdout
    assert "\n1 wrong, " in result.stdout


def test_every_problem_of_a_configuration_is_a_line(recipe):
    found = bad(told(recipe, "trainer.sav_freq=1", "trainer.device=gpu", code=1))
    lines = [item.text for item in found if item.topic == "configuration"]
    assert len(lines) == 2
    assert "Did you mean 'trainer.save_freq'" in lines[0]


def test_rows_that_the_score_function_cannot_tell_apart(recipe, tmp_path):
    (tmp_path / "score.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
    )
    found = bad(told(recipe, f"custom_reward_function.path={tmp_path}/score.py", code=1))
    assert any("an empty answer 1" in item.text and "check --grader" in item.todo for item in found)


def test_a_recipe_of_sft_has_the_checks_of_sft(tmp_path, tiny_model_dir):
    found = bad(told("demo_sft", code=1))
    assert any("agentrl sft CONFIG --dry-run" in item.todo for item in found)
    assert not any(item.topic == "configuration" for item in found)


def test_without_a_run_the_machine_alone_is_looked_at():
    found = told(code=0)
    assert found[-1].text.startswith("none given: `agentrl doctor CONFIG`")


# --- ports --------------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_named(recipe):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        keys = [f"actor_rollout_ref.rollout.server.port={port}", f"trainer.prometheus_address={port}"]
        found = bad(told(recipe, *keys, code=1))
    assert [item.text for item in found if item.topic == "ports"] == [
        f"port {port} of 127.0.0.1 is taken",
        f"trainer.prometheus_address: port {port} of 127.0.0.1 is taken",
    ]


# --- the usual mistakes -------------------------------------------------------------------------------------------

SIMPLE = {
    mistakes.no_validation: ["trainer.test_freq=-1"],
    mistakes.no_checkpoints: ["trainer.save_freq=-1"],
    mistakes.no_dumps: ["trainer.rollout_data_dir=null"],
    mistakes.no_metrics: ["trainer.logger=[console]"],
    mistakes.same_rows: ["data.val_files=train.parquet"],
    mistakes.cold_sampling: ["actor_rollout_ref.rollout.temperature=0.2"],
}


@pytest.mark.parametrize("mistake", SIMPLE, ids=lambda mistake: mistake.__name__)
def test_a_mistake_in_the_configuration(config, recipe, mistake):
    assert mistake(config) is None
    found = mistake(changed(config, recipe, *SIMPLE[mistake]))
    assert found is not None
    assert (found.verdict, bool(found.todo)) == (Severity.NOTE, True)


def test_a_learning_rate_of_supervised_training(config, recipe):
    big = ["actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct", "actor_rollout_ref.actor.optim.lr=1e-4"]
    assert mistakes.large_rate(changed(config, recipe, big[1])) is None  # the tiny model may learn so fast
    found = mistakes.large_rate(changed(config, recipe, *big))
    assert found is not None
    assert "7.6 billion weights" in found.text
    assert mistakes.large_rate(changed(config, recipe, *big, "actor_rollout_ref.model.lora_rank=8")) is None
    assert mistakes.large_rate(changed(config, recipe, big[0])) is None


def test_a_folder_that_another_run_has_used(config, recipe):
    folder = Path(config.trainer.default_local_dir)
    assert mistakes.used_folder(config) is None
    write_run(folder, [0.5])
    other = mistakes.used_folder(config)
    assert other is not None
    assert "would go on with other keys" in other.text or "has finished" in other.text
    off = mistakes.used_folder(changed(config, recipe, "trainer.resume_mode=disable"))
    assert off is not None
    assert "whose metrics this one replaces" in off.text
    (folder / "config.yaml").write_text(json.dumps(config.model_dump(mode="json")))
    with RunStateFile(folder, 1) as state:
        state.log({}, 1)
        running = mistakes.used_folder(config)
        assert running is not None
        assert running.verdict is Severity.WRONG
        assert "a run goes on in" in running.text
    finished = mistakes.used_folder(config)
    assert finished is not None
    assert "has finished: this one would do nothing" in finished.text
    (folder / "config.yaml").write_text("[")
    damaged = mistakes.used_folder(config)
    assert damaged is not None
    assert "cannot be read" in damaged.text


def test_a_proxy_that_catches_local_addresses(config, recipe, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert mistakes.proxied(config) is None
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    found = mistakes.proxied(config)
    assert found is not None
    assert (found.verdict, "export NO_PROXY=" in found.todo) == (Severity.NOTE, True)
    found = mistakes.proxied(changed(config, recipe, "reward_model.sandbox_fusion.url=http://127.0.0.1:8080"))
    assert found is not None
    assert found.verdict is Severity.WRONG
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    assert mistakes.proxied(config) is None


def test_a_model_without_its_weights(config, tmp_path):
    assert mistakes.pointers(config) is None
    folder = tmp_path / "cloned"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    config.actor_rollout_ref.model.path = str(folder)
    found = mistakes.pointers(config)
    assert found is not None
    assert (found.verdict, found.todo) == (Severity.WRONG, "git lfs pull, there")


def test_there_are_ten():
    assert len(mistakes.MISTAKES) == 10


def test_the_doctor_answers_without_a_terminal(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "agentrl", "doctor"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "installation" in done.stdout
    assert "\x1b" not in done.stdout
