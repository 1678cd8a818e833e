"""`agentrl check --grader`: score functions on right answers, wrong ones and none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from judge_endpoint import JudgeEndpoint, judging
from typer.testing import CliRunner, Result

from agentrl.cli import app
from agentrl.rewards.dispatcher import CODE_SOURCES, QUESTIONS, SCORES
from agentrl.rewards.scores import geo3k, math_dapo

Write = Callable[..., Path]
TRUTHS: dict[str, list[Any]] = {
    "openai/gsm8k": ["72", "1,234", "She has 5 + 5 = 10.\n#### 10"],
    "agentrl/arithmetic": ["2.5", "-3", "7"],
    "lighteval/MATH": ["\\frac{1}{2}", "x^2", "\\{1, 2\\}"],
    "DigitalLearningGmbH/MATH-lighteval": ["3", "(1, 2)", "\\sqrt{2}"],
    "Maxwell-Jia/AIME_2024": ["204", "113", "25"],
    "searchR1_*": [{"target": ["the Beatles", "Beatles"]}, {"target": ["Wales"]}, {"target": ["1969"]}],
    "gsm8k": ["72", "1,234", "10"],
    "math_dapo": ["34", "\\frac{1}{2}", "113"],
    "HuggingFaceH4/MATH-500": ["3", "\\frac{1}{2}", "5"],
    "hiyouga/geometry3k": ["2 \\sqrt { 3 }", "14", "30"],
    "agentrl/pictures": ["red", "3", "5"],
    **{source: [{"target": ["Rome"]}, {"target": ["Wales"]}, {"target": ["1969"]}] for source in QUESTIONS},
}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write rows, one per ground truth, to a parquet file."""

    def rows(
        truths: list[Any], source: str = "openai/gsm8k", answers: list[str] | None = None, style: str = "rule"
    ) -> Path:
        path = tmp_path / "rows.parquet"
        table = [
            {
                "data_source": source,
                "prompt": [{"role": "user", "content": "?"}],
                "reward_model": {"style": style, "ground_truth": truth},
                "extra_info": {"index": place, **({"answer": answers[place]} if answers else {})},
            }
            for place, truth in enumerate(truths)
        ]
        pq.write_table(pa.Table.from_pylist(table), path)
        return path

    return rows


def check(rows: Path, *arguments: str) -> Result:
    run = (f"data.train_files={rows}", "actor_rollout_ref.model.path=.", "actor_rollout_ref.rollout.n=2")
    return CliRunner().invoke(app, ["check", "--grader", *run, *arguments])


def with_score(folder: Path, body: str) -> str:
    """An override that names a score function with that body."""
    file = folder / "score.py"
    file.write_text(f"def compute_score(data_source, solution_str, ground_truth, extra_info):\n    {body}\n")
    return f"custom_reward_function.path={file}"


def test_every_built_in_score_knows_its_own_answers(write: Write) -> None:
    assert {SCORES[source] for source in TRUTHS} == set(SCORES.values())
    for source, function in SCORES.items():
        truths = next(TRUTHS[known] for known in TRUTHS if SCORES[known] is function)
        result = check(write(truths, source.replace("*", "nq")))
        assert result.exit_code == 0, result.output
        wrong = "-1.000" if function is math_dapo.compute_score else "0.000"
        right = "0.900" if function is geo3k.compute_score else "1.000"  # the rest is for thinking before the answer
        found = [cell.strip() for cell in result.output.split("│")[3:7]]
        assert found == ["3", right, wrong, wrong]
        assert result.output.endswith("usable\n")


def test_a_solution_that_the_row_carries_is_tried_too(write: Write, tmp_path: Path) -> None:
    rows = write(["72", "5"], answers=["48 + 24 = 72 FIN", "2 + 3 = 5 FIN"])
    body = "return 0.7 if solution_str.endswith('FIN') and ground_truth in solution_str else 0.1"
    result = check(rows, with_score(tmp_path, body))
    assert result.exit_code == 0, result.output
    assert "0.700" in result.output


def test_a_right_answer_that_earns_nothing(write: Write, tmp_path: Path) -> None:
    score = with_score(tmp_path, "return float('7' in solution_str and '7' in ground_truth)")
    result = check(write(["72", "5", "6"]), score)
    assert result.exit_code == 1
    text = "row 1: scores 0, an empty answer 0; the right answer was '#### 5'"
    assert f"{tmp_path}/rows.parquet, {text}" in result.output
    assert "row 2: scores 0" in result.output
    assert "row 0:" not in result.output
    assert result.output.endswith("unusable\n")
    assert check(write(["72", "5", "6"]), "--rows", "1", score).exit_code == 0


def test_a_ground_truth_that_is_none(write: Write) -> None:
    result = check(write(["72", "seven"]))
    assert result.exit_code == 1
    assert "row 1: the ground truth 'seven' is not a number; the right answer was '#### seven'" in result.output


def test_a_score_that_any_answer_earns(write: Write, tmp_path: Path) -> None:
    result = check(write(["72", "5"]), with_score(tmp_path, "return float(bool(solution_str))"))
    assert result.exit_code == 1
    text = "data.train_files, data_source 'openai/gsm8k': the answers of other rows score as high as the right ones"
    assert text in result.output


def test_a_score_function_that_fails_where_there_is_no_answer(write: Write, tmp_path: Path) -> None:
    body = "return float(solution_str.split()[-1] == ground_truth)"
    result = check(write(["72", "5"]), with_score(tmp_path, body))
    assert result.exit_code == 1
    place = f"{tmp_path / 'score.py'}:2"
    text = f"an empty answer fails: the score function raised IndexError: list index out of range ({place})"
    assert f"row 0: {text}; such trajectories would be left out" in result.output


def test_problems_are_counted_beyond_the_first(write: Write, tmp_path: Path) -> None:
    result = check(write([str(n) for n in range(30)]), with_score(tmp_path, "return 0"))
    assert result.output.count("an empty answer 0") == 20
    assert "and 10 more" in result.output


@pytest.mark.parametrize("source", CODE_SOURCES)
def test_rows_without_an_answer_are_not_called_usable(write: Write, source: str) -> None:
    rows = write(["[]"], source)
    result = check(rows, "reward_model.sandbox_fusion.url=http://127.0.0.1:9/run_code")
    assert result.exit_code == 2
    assert "extra_info.answer" in result.output


def test_what_cannot_be_checked(write: Write, tmp_path: Path) -> None:
    rows = write(["72"])
    assert "calls no score function" in check(rows, "reward_model.combine={outcome: 0, turn: 1}").output
    assert "no score function for data_source 'nobody/knows'" in check(write(["1"], "nobody/knows")).output
    assert "data.train_filez" in CliRunner().invoke(app, ["check", "--grader", "data.train_filez=x"]).output
    refused = CliRunner().invoke(app, ["check", "--audit", str(tmp_path), "data.seed=1"])
    assert refused.exit_code == 2
    assert "--grader" in refused.output


def test_gold_answers_that_are_json_text_are_graded_as_they_are_scored(write: Write) -> None:
    truths = [json.dumps({"target": [name]}) for name in ("Rome", "Wales", "1969")]
    result = check(write(truths, "searchR1_nq"))
    assert result.exit_code == 0, result.output
    assert "1.000" in result.output
    wrong = check(write([{"target": [None]}, {"target": ["Rome"]}], "searchR1_nq"))
    assert wrong.exit_code == 1
    assert "holds no gold answer" in wrong.output


def test_rows_that_ask_for_a_model_are_no_rule_s(write: Write) -> None:
    rows = write(["72", "5"], style="model")
    result = check(rows)
    assert result.exit_code == 1
    assert "`reward_model.style` is 'model', but the score of data_source 'openai/gsm8k' is a rule" in result.output


def test_a_judge_is_tried_like_a_score_function(write: Write) -> None:
    def reply(_: JudgeEndpoint, text: str) -> str:
        right, answer = text.split("|")
        return str(float(answer == right))

    rows = write(["72", "5"], source="own")
    with judging(reply) as endpoint:
        judge = [f"reward_model.judge.base_url={endpoint.url}", "reward_model.judge.template='{ground_truth}|{answer}'"]
        result = check(rows, *judge, "reward_model.combine.outcome=0")
        assert result.exit_code == 0, result.output
        assert [cell.strip() for cell in result.output.split("│")[3:7]] == ["2", "1.000", "0.000", "0.000"]
        endpoint.reply = lambda *_: "0.5"
        result = check(rows, *judge, "reward_model.combine.outcome=0", "reward_model.judge.cache=false")
        assert result.exit_code == 1
        assert "scores 0.5, an empty answer 0.5" in result.output
        endpoint.reply = lambda *_: 401
        result = check(rows, *judge, "reward_model.combine.outcome=0")
        assert "the judge: " in result.output
        assert "HTTP 401" in result.output
