"""`agentrl check`: verdicts on chat templates, and the audit of dumped rollouts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from agentrl.cli import app
from tests.chat.shapes import SHAPES

runner = CliRunner()


def check(*arguments: str | Path) -> Result:
    return runner.invoke(app, ["check", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The tokenizer folder of a shape."""
    root = tmp_path_factory.mktemp("tokenizers")

    def of(name: str) -> Path:
        place, renderer = root / name, SHAPES[name].renderer
        renderer.tokenizer.save_pretrained(place)
        ends = sorted(renderer.stop_token_ids)
        (place / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        return place

    return of


@pytest.mark.parametrize("name", SHAPES)
def test_the_verdict_on_each_template(name: str, folder: Callable[[str], Path]) -> None:
    result = check("--template", folder(name))
    assert result.exit_code == 0, result.output
    preserving = name not in ("thinking", "no_thinking", "empty_thoughts", "mistral")
    assert re.search(rf"prefix-preserving\s+│ {'ok' if preserving else 'note'}\s", result.output)
    assert ("first difference when a" in result.output) == (not preserving)
    assert result.output.rstrip().endswith("\nusable")


def test_smollm2_cannot_show_tools(smollm2_folder: Path) -> None:
    alone = check("--template", smollm2_folder)
    assert alone.exit_code == 0
    assert "'<|im_end|>' (2)" in alone.output
    assert "the prompt omits the tools that a run offers" in alone.output
    with_tools = check("--template", smollm2_folder, "--tools", "tools/calculator.yaml")
    assert with_tools.exit_code == 1
    assert "offers (calculator)" in with_tools.output
    assert with_tools.output.rstrip().endswith("\nunusable")
    tools = ["--tools", "tools/calculator.yaml", "--chat-template", "templates/chatml_tools.jinja"]
    assert check("--template", smollm2_folder, *tools).exit_code == 0


def test_variables_and_a_template_file(folder: Callable[[str], Path], tmp_path: Path) -> None:
    tokenizer, file = folder("thinking"), tmp_path / "own.jinja"
    file.write_text(SHAPES["thinking"].family.template)
    result = check("--template", file, "--tokenizer", tokenizer, "--kwargs", "enable_thinking=false")
    assert result.exit_code == 0
    assert "first difference when a user message follows an assistant turn with text: token" in result.output
    assert "    stream    …'\\n<|im_start|>assistant\\n<think'…" in result.output
    assert check("--template", file).exit_code == 2
    assert check("--template", tokenizer, "--kwargs", "enable_thinking").exit_code == 2


def test_what_cannot_be_checked(tmp_path: Path) -> None:
    assert check().exit_code == 2
    assert check("--template", tmp_path, "--audit", tmp_path).exit_code == 2
    assert check("--template", tmp_path).exit_code == 2


def record(**changes: Any) -> str:
    """A trajectory of two turns with an observation between them."""
    whole = {
        "input": "<|im_start|>user\nhi",
        "score": 1.0,
        "step": 3,
        "stop_reason": "completed",
        "prompt_ids": [1, 2],
        "response_ids": [5, 6, 7, 8, 9],
        "response_mask": [1, 1, 0, 0, 1],
        "loss_mask": [1, 1, 0, 0, 1],
        "rollout_log_probs": [-0.5, 0.0, 0.0, 0.0, -0.25],
        "weight_versions": [2, 2, -1, -1, 3],
        "segments": [[2, "call<|im_end|>"], [2, "\nresult"], [1, "answer"]],
    }
    return json.dumps({**whole, **changes}) + "\n"


def test_an_audit_proves_what_was_sampled(tmp_path: Path) -> None:
    (tmp_path / "3.jsonl").write_text(record() * 2)
    (tmp_path / "10.jsonl").write_text(record())
    result = check("--audit", tmp_path)
    assert result.exit_code == 0, result.output
    assert "3 trajectories in 2 dumps; trained tokens: 6 by weight version 2, 3 by weight version 3" in result.output
    assert "every trained token was sampled" in result.output
    assert "⟦trained 2⟧call<|im_end|>⟦observed 2⟧\nresult⟦trained 1⟧answer" in result.output
    assert result.output.index("3.jsonl:2") < result.output.index("10.jsonl:1")
    one = check("--audit", tmp_path, "--step", "10", "--limit", "0")
    assert "1 trajectories in 1 dumps" in one.output
    assert "answer" not in one.output
    assert check("--audit", tmp_path / "10.jsonl").exit_code == 0


@pytest.mark.parametrize(
    ("changes", "where", "what"),
    [
        ({"response_mask": [1, 1, 1, 0, 1]}, ", token 2", "its mask is 1, but no weight version sampled it"),
        ({"loss_mask": [1, 1, 1, 0, 1]}, ", token 2", "its loss mask is 1, wanted 0 or its mask, 0"),
        ({"response_mask": [1, 0, 0, 0, 1]}, ", token 1", "version 2 sampled it, but its mask is 0"),
        ({"response_mask": [1, 2, 0, 0, 1]}, ", token 1", "the mask holds 2"),
        ({"rollout_log_probs": [-1, -1, 0, -2, -1]}, ", token 3", "was not sampled, but has the log-prob -2"),
        ({"rollout_log_probs": [-1, 0.5, 0, 0, -1]}, ", token 1", "log-prob is 0.5, wanted at most 0"),
        ({"rollout_log_probs": [-1, None, 0, 0, -1]}, ", token 1", "log-prob is None"),
        ({"weight_versions": [2, 2, -1, -1, 1]}, ", token 4", "after version 2: an engine served old weights"),
        ({"weight_versions": [2, None, -1, -1, 2]}, ", token 1", "weight_versions holds None, wanted a whole number"),
        ({"response_ids": [5, 6, 7, 8]}, "", "lengths differ: response_ids 4, response_mask 5"),
        (
            {"weight_versions": [2, 2, -1, -1, -1], "response_mask": [1, 1, 0, 0, 0], "loss_mask": [1, 1, 0, 0, 0]},
            ", token 2",
            "3 tokens follow the last sampled token",
        ),
    ],
)
def test_an_audit_names_what_breaks_a_rule(tmp_path: Path, changes: dict[str, Any], where: str, what: str) -> None:
    file = tmp_path / "1.jsonl"
    file.write_text(record() + record(**changes))
    result = check("--audit", tmp_path)
    assert result.exit_code == 1
    assert f"{file}:2{where}: " in result.output
    assert what in result.output
    assert "violations" in result.output


def test_a_turn_that_is_not_trained_is_no_violation(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text(record(loss_mask=[0, 0, 0, 0, 1]))
    result = check("--audit", tmp_path)
    assert result.exit_code == 0
    assert "⟦sampled 2⟧call" in result.output
    assert "trained tokens: 1 by weight version 3" in result.output


def test_a_dump_without_text_shows_ids(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text(record(segments=None))
    assert "⟦trained 2⟧5 6 ⟦observed 2⟧7 8 ⟦trained 1⟧9" in check("--audit", tmp_path).output


def test_an_audit_shows_control_characters(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\u202e"
    (tmp_path / "1.jsonl").write_text(
        record(input=evil, stop_reason=f"[/x]{evil}", segments=[[2, evil], [2, "result\n"], [1, evil]])
    )
    shown = check("--audit", tmp_path).output
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    assert "⟦observed 2⟧result\n⟦trained 1⟧" in shown
    assert shown.count(r"\x1b]0;owned\x07\u202e") == 4


def test_what_is_no_dump(tmp_path: Path) -> None:
    for arguments, message in (
        ((tmp_path / "nowhere",), "does not exist"),
        ((tmp_path,), "holds no rollout dump (STEP.jsonl)"),
    ):
        result = check("--audit", *arguments)
        assert result.exit_code == 2
        assert message in result.output
    (tmp_path / "7.jsonl").write_text("{")
    assert "7.jsonl:1 is not JSON" in check("--audit", tmp_path).output
    (tmp_path / "7.jsonl").write_text('{"input": "x"}\n')
    assert "the file is not a rollout dump of agentrl" in check("--audit", tmp_path).output
    old = json.loads(record())
    del old["loss_mask"]
    (tmp_path / "7.jsonl").write_text(json.dumps(old))
    assert "7.jsonl:1 has no loss_mask: an earlier agentrl wrote it" in check("--audit", tmp_path).output
    missing = check("--audit", tmp_path, "--step", "8")
    assert "holds no dump of step 8, only of 7" in missing.output
