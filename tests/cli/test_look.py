"""The commands that look at runs: what they say of made-up runs, and of what is no run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import record, write_dump, write_run
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.observability.run_state import RunStateFile

runner = CliRunner()


def said(*arguments: str, code: int = 0) -> str:
    result = runner.invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


def told(*arguments: str) -> Any:
    return json.loads(said(*arguments, "--json"))


# --- runs ---------------------------------------------------------------------------------------------------------


def test_runs_are_listed_with_state_step_reward_and_speed(tmp_path):
    write_run(tmp_path / "old", [0.0] * 5 + [0.5] * 10)
    live = write_run(tmp_path / "group" / "live", [0.25, 0.75], total_training_steps=9)
    with (live / "metrics.jsonl").open("a") as file:
        row = {"step": 3, "val-core/sums/reward/mean@1": 0.5, "health/alarm/short": 1.0}
        file.write(json.dumps(row) + "\n")
    state = RunStateFile(live, 9)
    state.__enter__()
    state.log({}, 3)
    old, newest = told("runs", tmp_path)
    assert (old["state"], old["step"], old["total_steps"], old["reward"]) == ("finished", 15, 15, 0.5)
    assert newest["path"] == str(live)
    assert (newest["state"], newest["step"], newest["total_steps"]) == ("running", 3, 9)
    assert (newest["reward"], newest["seconds_per_step"], newest["tokens_per_second"]) == (0.5, 2.0, 100.0)
    assert newest["seconds_left"] == 12.0
    assert (newest["validation"], newest["alarms"]) == ({"val-core/sums/reward/mean@1": 0.5}, ["short"])
    shown = said("runs", tmp_path)
    assert "group/live" in shown
    assert "running alarm: short" in shown
    assert "3/9" in shown


def test_a_failed_and_a_damaged_run_are_told_and_the_others_are_listed(tmp_path):
    write_run(tmp_path / "good", [1.0])
    (write_run(tmp_path / "damaged", [1.0]) / "metrics.jsonl").write_text("x\n{}\n")
    (write_run(tmp_path / "state", [1.0]) / "run_state.json").write_text('{"state": "running", "step": "x"}')
    with pytest.raises(ZeroDivisionError), RunStateFile(write_run(tmp_path / "failed", [1.0]), 4):
        raise ZeroDivisionError("1/0")
    states = {Path(found["path"]).name: found["state"] for found in told("runs", tmp_path)}
    assert states == {"good": "finished", "damaged": "unknown", "failed": "failed", "state": "unknown"}
    shown = said("runs", tmp_path)
    assert "damaged: " in shown
    assert "got 'x', wanted a JSON object" in shown
    assert "ZeroDivisionError" in shown


def test_numbers_whose_sum_no_float_holds_are_listed_and_compared(tmp_path):
    run = write_run(tmp_path / "huge", [1e308] * 3)
    assert "inf" in said("runs", tmp_path)
    assert "inf" in said("diff", run, run)


def test_the_newest_part_of_long_metrics_is_enough(tmp_path):
    run = write_run(tmp_path / "long", [0.0] * 20_000 + [0.5] * 10)
    assert (run / "metrics.jsonl").stat().st_size > 1_500_000
    (found,) = told("runs", run)
    assert (found["reward"], found["step"]) == (0.5, 20_010)


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("none", "No such file or directory, wanted a folder of runs"),
        (".", "holds no run: wanted a folder below which"),
    ],
)
def test_no_runs(tmp_path, folder, message):
    assert message in said("runs", tmp_path / folder, code=2)


# --- show ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two steps with dumps, of which the second has failures."""
    folder = write_run(tmp_path / "run", [0.5, 0.6], rollout_data_dir=str(tmp_path / "run" / "rollouts"))
    write_dump(folder / "rollouts", 1, [record(1, 0, "1+1", "early", 0.0)])
    records = [record(2, row // 2, f"q{row // 2}", f"a{row}", row / 10) for row in range(8)]
    records[3]["reward_extra_info"] = {"acc": 1.0, "pred": "x", "judge_reason": "It is right because " + "y" * 80}
    write_dump(folder / "rollouts", 2, records)
    lost = {"step": 2, "uid": "2-9", "stop_reason": "timeout", "error": "no answer in 60 s", "messages": []}
    write_dump(folder / "rollouts", 2, [lost], ".failed.jsonl")
    return folder


def test_the_worst_and_the_best_of_the_newest_step(run):
    shown = said("show", run)
    assert [line for line in shown.splitlines() if line.startswith(("worst", "best"))] == [
        "worst: 3 of 8",
        "best: 3 of 8",
    ]
    assert [f"a{row}" in shown for row in range(8)] == [True] * 3 + [False] * 2 + [True] * 3
    shown = said("show", run, "--best", "1")
    assert "step 2, group 2-3 (sums): score 0.7, completed, 4 turns, 1 tool call" in shown
    assert 'assistant: let me see\n-> calculator({"expression": "q3"})\ntool calculator: a7\nassistant: a7' in shown
    assert "ground truth: 42" in shown
    assert "worst:" not in shown


def test_the_reasons_of_a_reward(run):
    shown = said("show", run, "--text", "BECAUSE")
    assert "all: 1" in shown
    assert "reward: acc 1, pred x" in shown
    assert f"judge_reason: It is right because {'y' * 80}" in shown


def test_failed_conversations_and_their_causes(run):
    shown = said("show", run, "--failed")
    assert "failed, so left out of training: 1" in shown
    assert "step 2, group 2-9: timeout" in shown
    assert "no answer in 60 s" in shown
    assert "worst:" not in shown
    assert "best: 1 of 8" in said("show", run, "--failed", "--best", "1")


def test_other_steps_files_and_json(run):
    assert "early" in said("show", run, "--step", "1")
    assert "early" in said("show", run / "rollouts" / "1.jsonl")
    assert "early" in said("show", run, "--all-steps", "--worst", "1")
    assert "early" not in said("show", run / "rollouts")
    (found,) = map(json.loads, said("show", run, "--best", "1", "--json").splitlines())
    assert (found["score"], found["line"]) == (0.7, 8)
    assert "prompt_ids" not in found


def test_a_long_message_is_cut_and_control_characters_are_shown(run):
    evil = record(3, 0, "q", "\x1b[31mred\u202e" + "z" * 3000, 1.0)
    write_dump(run / "rollouts", 3, [evil])
    shown = said("show", run)
    assert "\x1b" not in shown
    assert r"\x1b[31mred\u202e" in shown
    assert "z… (1,0" in shown
    assert "z" * 3000 in said("show", run, "--full")


def test_validation_is_shown_where_training_dumps_nothing(tmp_path):
    folder = write_run(tmp_path / "run", [1.0])
    message = said("show", folder, code=2)
    assert (
        "holds no rollout dump (STEP.jsonl): `trainer.rollout_data_dir` and `trainer.validation_data_dir` write"
        in message
    )
    write_dump(folder / "validation", 1, [record(1, 0, "q", "validated", 1.0)])
    assert "validated" in said("show", folder)
    write_dump(folder / "rollouts", 1, [record(1, 0, "q", "trained", 1.0)])
    assert "trained" in said("show", folder)
    assert "validated" in said("show", folder, "--validation")


def test_a_dump_of_verl_has_texts_only(tmp_path):
    file = write_dump(tmp_path, 1, [{"input": "user asks", "output": "model says", "score": 1, "step": 1}])
    shown = said("show", file)
    assert "input: user asks" in shown
    assert "output: model says" in shown


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "1.jsonl:1 is not JSON"),
        ("[1]", "1.jsonl:1: got list, wanted the record of a conversation"),
        ("{}", "1.jsonl:1 has the score None, wanted a number: is it a rollout dump?"),
        ('{"score": 1, "messages": ["x"]}', "got the messages ['x'], wanted a list of chat messages"),
        ('{"score": 1, "messages": [{"role": 5}]}', "wanted a list of chat messages"),
        ('{"score": 1, "messages": [{"role": "user", "content": [null]}]}', "wanted a list of chat messages"),
        ('{"score": 1, "messages": [{"role": "user", "tool_calls": 5}]}', "wanted a list of chat messages"),
        ('{"score": 1, "messages": [{"role": "user", "tool_calls": ["f"]}]}', "wanted a list of chat messages"),
        ('{"score": 1, "messages": [{"role": "user", "tool_calls": [{"function": "f"}]}]}', "a list of chat messages"),
        ('{"score": 1, "reward_extra_info": [2]}', "1.jsonl:1: got the reward_extra_info [2], wanted a mapping"),
        ('{"score": 1, "extra_info": "x"}', "1.jsonl:1: got the extra_info 'x', wanted a mapping"),
        ('{"score": 1, "step": "x"}', "1.jsonl:1: got the step 'x', wanted a whole number"),
    ],
)
def test_a_damaged_dump_is_named(tmp_path, content, message):
    (tmp_path / "1.jsonl").write_text(content + "\n")
    assert message in said("show", tmp_path, code=2).replace("\n", "")


@pytest.mark.parametrize("content", ['{"score": "bad"}', '{"messages": [1]}', '{"reward_extra_info": [1]}'])
def test_a_damaged_record_of_a_failure_is_named(run, content):
    (run / "rollouts" / "2.failed.jsonl").write_text(content + "\n")
    assert "2.failed.jsonl:1" in said("show", run, "--failed", code=2).replace("\n", "")


def test_steps_that_are_not_there(run):
    assert "holds no dump of step 7, only of 2" in said("show", run / "rollouts" / "2.jsonl", "--step", "7", code=2)
    assert said("show", run / "rollouts" / "2.jsonl", "--step", "2")
    assert "holds no dump of step 7, only of 1, 2" in said("show", run, "--step", "7", code=2)
    assert "nowhere does not exist" in said("show", run / "nowhere", code=2)
    assert "wanted one of them" in said("show", run, "--step", "1", "--all-steps", code=2)


# --- diff ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    a = write_run(tmp_path / "a", [0.1, 0.2, 0.3], save_freq=5)
    b = write_run(tmp_path / "b", [0.5, 0.6, 0.7], save_freq=5, seed=3)
    for folder, step, scores in ((a, 2, (0.0, 0.0)), (a, 3, (0.0, 1.0)), (b, 2, (1.0, 0.0)), (b, 4, (1.0, 1.0))):
        answers = [
            record(step, row, f"q{row}", f"{folder.name} says {score}", score) for row, score in enumerate(scores)
        ]
        write_dump(folder / "validation", step, answers)
    return a, b


def test_two_runs_differ_in_configuration_metrics_and_answers(pair):
    a, b = pair
    found = told("diff", a, b)
    assert found["config"] == [
        {"key": "trainer.default_local_dir", "a": str(a), "b": str(b)},
        {"key": "trainer.seed", "a": None, "b": 3},
    ]
    score = found["metrics"]["critic/score/mean"]
    assert score["a"] == {"mean": pytest.approx(0.2), "deviation": pytest.approx(0.1), "steps": 3}
    assert score["b"]["mean"] == pytest.approx(0.6)
    assert found["prompts"]["a"].endswith("a/validation/2.jsonl")
    changed, same = found["prompts"]["prompts"]
    assert (changed["question"], changed["a"][0]["score"], changed["b"][0]["score"]) == ("q0", 0.0, 1.0)
    assert same["question"] == "q1"
    shown = said("diff", a, b, "--prompts", "1")
    assert "trainer.seed" in shown
    assert "0.2 ± 0.1" in shown
    assert "+0.4" in shown
    assert "clear" in shown
    assert "95 % interval" in shown
    assert "A (0): a says 0.0\nB (1): b says 1.0" in shown


def test_metrics_and_steps_that_are_chosen(pair):
    a, b = pair
    assert list(told("diff", a, b, "--metric", "timing*", "--last", "1")["metrics"]) == ["timing_s/step"]
    assert told("diff", a, b, "--metric", "perf/throughput", "--last", "1")["metrics"]["perf/throughput"]["a"] == {
        "mean": 100.0,
        "deviation": None,
        "steps": 1,
    }
    message = said("diff", a, b, "--metric", "critic/score/meen", code=2)
    assert "neither run has it. Did you mean 'critic/score/mean'?" in message
    assert "not both runs have a validation dump of it. Both have: 2" in said("diff", a, b, "--step", "4", code=2)


def test_runs_without_dumps_are_compared_by_the_rest(tmp_path):
    a, b = write_run(tmp_path / "a", [0.1]), write_run(tmp_path / "b", [0.1])
    shown = said("diff", a, b)
    assert "No conversations of both: trainer.validation_data_dir and trainer.rollout_data_dir write them." in shown
    assert told("diff", a, b)["prompts"] is None
    assert "is not a run folder" in said("diff", a, tmp_path, code=2)


def test_prompts_of_one_run_alone_do_not_command_a_terminal(tmp_path):
    runs = [write_run(tmp_path / name, [0.1]) for name in ("a", "b")]
    shared = record(1, 0, "q", "x", 1.0, data_source="[/evil]")
    write_dump(runs[0] / "rollouts", 1, [shared])
    write_dump(runs[1] / "rollouts", 1, [shared, record(1, 1, "\x1b]0;owned\x07\u202e", "x", 1.0)])
    shown = said("diff", *runs)
    assert r"\x1b]0;owned\x07\u202e" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    assert "[/evil]" in shown


def test_where_no_step_is_in_both_the_newest_of_each_are_compared(pair):
    a, b = pair
    (a / "validation" / "2.jsonl").rename(a / "validation" / "0.jsonl")
    (b / "validation" / "2.jsonl").rename(b / "validation" / "0.jsonl")
    found = told("diff", a, b)["prompts"]
    assert (Path(found["a"]).name, Path(found["b"]).name) == ("3.jsonl", "4.jsonl")


# --- replay -------------------------------------------------------------------------------------------------------

SCORES = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "sums" and ground_truth == "42" and extra_info["level"] == 3
    assert extra_info["num_turns"] == 4 and extra_info["messages"][-1]["role"] == "assistant"
    return float(solution_str.split("a")[-1]) / 10

def backwards(data_source, solution_str, ground_truth, extra_info=None, top=1.0):
    if solution_str.endswith("a7"):
        raise ValueError("seven")
    return top - float(solution_str.split("a")[-1]) / 10
"""


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    file = tmp_path / "scores.py"
    file.write_text(SCORES)
    return file


def test_the_same_function_changes_nothing(run, scores):
    found = told("replay", run, "--reward", scores, "--step", "2")
    assert (found["conversations"], found["changed"], found["no_score"], found["changes"]) == (8, 0, 0, [])
    assert found["groups"] == {"groups": 4, "reversed": [], "retied": [], "differed": 4, "differ": 4}
    assert "4 groups: the order changes in 0; 4 could teach" in said("replay", run, "--reward", scores, "--step", "2")


def test_another_function_changes_scores_and_orders(run, scores):
    found = told("replay", run, "--reward", f"{scores}:backwards", "--step", "2")
    assert (found["changed"], found["no_score"]) == (6, 1)  # a5 has 0.5 either way
    assert found["before"] == pytest.approx(0.35)
    assert found["after"] == pytest.approx(0.7)
    assert found["groups"]["reversed"] == [[2, "2-0"], [2, "2-1"], [2, "2-2"]]
    assert (found["groups"]["differed"], found["groups"]["differ"]) == (3, 3)
    (lost,) = (item for item in found["changes"] if item["error"])
    assert "seven" in lost["error"]
    shown = said("replay", run, "--reward", f"{scores}:backwards", "--step", "2", "--examples", "1")
    assert "8 conversations of 1 dump" in shown
    assert "the order changes in 3 (3 with a pair reversed, 0 with new or resolved ties)" in shown
    assert "reversed: 2-0 of step 2, 2-1 of step 2, 2-2 of step 2" in shown
    assert "no score: 1 x RewardError" in shown
    assert "0 -> 1" in shown


def test_options_of_the_function(run, scores):
    options = ("--reward", f"{scores}:backwards", "--step", "2", "custom_reward_function.reward_kwargs.top=2")
    assert told("replay", run, *options)["after"] == pytest.approx(1.7)


def test_other_parts_of_the_reward_stay(run, scores):
    """Half of the outcome and a tool reward of 1: another outcome moves the reward by half of its change."""
    run.joinpath("config.yaml").write_text(json.dumps({"reward_model": {"combine": {"outcome": 0.5}}}))
    parts = {"outcome_score": 0.4, "tool_reward": 1.0}
    write_dump(run / "rollouts", 5, [record(5, 0, "q", "a8", 1.2, reward_extra_info=parts)])
    (change,) = told("replay", run, "--reward", scores, "--step", "5")["changes"]
    assert (change["before"], change["after"]) == (1.2, pytest.approx(1.4))


def test_the_penalty_for_length_stays(run, scores):
    write_dump(run / "rollouts", 5, [record(5, 0, "q", "a2", -0.3, reward_extra_info={"overlong_reward": -0.5})])
    assert told("replay", run, "--reward", scores, "--step", "5")["changes"] == []


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("none.py", "none.py does not exist"),
        ("scores.py:backward", "Did you mean 'backwards'?"),
    ],
)
def test_a_reward_that_cannot_be_used(run, scores, reward, message):
    assert message in said("replay", run, "--reward", scores.with_name(reward), code=2).replace("\n", " ")


def test_nothing_to_score(run, scores):
    scores.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1 / 0\n"
    )
    assert "none of 8 conversations got a score; the first: RewardError" in said(
        "replay", run, "--reward", scores, "--step", "2", code=2
    )
    run.joinpath("config.yaml").write_text(json.dumps({"reward_model": {"combine": {"outcome": 0}}}))
    assert "reward_model.combine.outcome is 0" in said("replay", run, "--reward", scores, code=2)
