"""The closing page: numbers, picture, conversations; and the lines shown while it trains."""

from __future__ import annotations

import io
import json
import re

import pytest
import torch
from rich.console import Console

from agentrl.cli.demo import report
from agentrl.cli.demo.calculator import CALCULATOR
from agentrl.cli.demo.show import History, TrainingShow, WarmStartShow
from agentrl.data_proto import DataProto
from agentrl.observability.tracker import RunInfo

KEYS = {
    "success_before",
    "success_after",
    "tool_rate_before",
    "tool_rate_after",
    "seconds",
    "rl_steps",
    "tokens_generated",
    "tokens_per_second_rollout",
}


def metrics(step: int) -> dict[str, float]:
    row = {"critic/score/mean": step / 30, "rollout/tool_call_rate": 0.5, "timing_s/gen": 0.5, "timing_s/step": 1.0}
    held_out = {CALCULATOR.success: 0.31 + step / 50, CALCULATOR.second.held_out: 0.55 + step / 100}
    return (row if step else {}) | (held_out if step % 15 == 0 else {})


@pytest.fixture
def history() -> History:
    return History({step: metrics(step) for step in range(31)}, tokens_generated=3000)


def test_the_summary_has_the_agreed_keys_and_last_line(history, tmp_path):
    summary = report.summarize(CALCULATOR, history, 286.6)
    assert summary.line() == "demo: success 0.31 -> 0.91, tool calls 0.55 -> 0.85, 287 s"
    summary.write(tmp_path / "summary.json")
    written = json.loads((tmp_path / "summary.json").read_text())
    assert set(written) == KEYS
    assert written["rl_steps"] == 30
    assert written["tokens_generated"] == 3000
    assert written["tokens_per_second_rollout"] == 200.0


def test_the_plot_is_a_png(history, tmp_path):
    report.plot(CALCULATOR, history, tmp_path / "progress.png")
    assert (tmp_path / "progress.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "progress.png").stat().st_size > 10_000


def dump(path, rows):
    lines = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": "x"}], "score": s, "gts": "9"}
        | {"num_tool_calls": n}
        for q, s, n in rows
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_shown_question_was_wrong_without_the_tool_and_is_right_with_it(tmp_path):
    before = dump(tmp_path / "0.jsonl", [("1+1", 1, 0), ("12*34", 0, 1), ("56*78", 0, 0), ("2*2", 0, 0)])
    after = dump(tmp_path / "9.jsonl", [("2*2", 0, 1), ("56*78", 1, 1), ("12*34", 1, 1), ("1+1", 1, 1)])
    old, new = report.pick_conversations(before, after)
    assert old["messages"][0]["content"] == new["messages"][0]["content"] == "56*78"
    assert (old["score"], new["score"]) == (0, 1)


def test_where_nothing_improved_a_question_is_shown_still(tmp_path):
    before, after = dump(tmp_path / "0.jsonl", [("1+1", 1, 0)]), dump(tmp_path / "1.jsonl", [("1+1", 0, 0)])
    old, new = report.pick_conversations(before, after)
    text = io.StringIO()
    report.show_conversations(Console(file=text, width=120), old, new)
    assert "before: right" in text.getvalue()
    assert "after: wrong (9 wanted)" in text.getvalue()
    report.show_conversations(Console(file=text, width=120), old, {**new, "gts": {"target": ["Rebo", "Rebu"]}})
    assert "after: wrong (Rebo or Rebu wanted)" in text.getvalue()


def test_plain_output_has_a_line_for_each_validation_and_every_tenth_step(tmp_path):
    text = io.StringIO()
    show = TrainingShow(Console(file=text), CALCULATOR)
    show.on_start(RunInfo("demo", "run", tmp_path, 30))
    for step in range(31):
        show.on_stage(step, "gen")
        show.log(metrics(step), step)
    show.close()
    steps = [int(found) for found in re.findall(r"^step (\d+)/30", text.getvalue(), re.MULTILINE)]
    assert steps == [0, 10, 15, 20, 30]
    assert "held-out success 0.91" in text.getvalue().splitlines()[-1]


def test_a_terminal_gets_a_live_table(tmp_path):
    text = io.StringIO()
    show = TrainingShow(Console(file=text, force_terminal=True, width=140, height=40), CALCULATOR)
    show.on_start(RunInfo("demo", "run", tmp_path, 30))
    for step in range(31):
        show.on_stage(step, "gen")
        show.log(metrics(step), step)
    show.close()
    assert "held-out tool calls" in text.getvalue()
    assert "0.31 → 0.61 → 0.91" in text.getvalue()


def test_sampled_tokens_are_counted():
    show = TrainingShow(Console(file=io.StringIO()), CALCULATOR)
    for step in range(2):
        show.on_rollouts(step, DataProto({"response_mask": torch.tensor([[1, 1, 0], [1, 0, 0]])}, {}, {}))
    assert show.history.tokens_generated == 6


@pytest.mark.parametrize("terminal", [True, False])
def test_the_warm_start_shows_its_progress(tmp_path, terminal):
    text = io.StringIO()
    show = WarmStartShow(Console(file=text, force_terminal=terminal, width=120))
    show.close()  # a run that fails before its start closes its trackers too
    show.on_start(RunInfo("agentrl", "sft", tmp_path, 100))
    show.log({"train/loss": 0.5, "train/accuracy": 0.9}, 50)
    show.close()
    assert "loss 0.500, tokens right 90%" in text.getvalue()
