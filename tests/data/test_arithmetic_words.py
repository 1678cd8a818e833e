"""Arithmetic in words: the question, the expression and the answer of a row say the same."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from agentrl.data.preprocess.arithmetic import demonstration_row, write_words
from agentrl.data.preprocess.arithmetic_words import DIFFICULTIES, generate_problems, number_in_words
from agentrl.data.preprocess.expressions import exact_value, tokenize
from agentrl.data.row import RowReader
from agentrl.errors import UserInputError
from agentrl.plugins import load_tools
from agentrl.rewards.dispatcher import truth_problem
from agentrl.rewards.scores.arithmetic import compute_score

NUMBERS = {number_in_words(number): number for number in range(1000)}
SIGNS = {"plus": "+", "minus": "-", "times": "*", "divided by": "/"}


def value_of(question: str) -> int:
    """Read a question from left to right, as its commas say."""
    words = question.removeprefix("What is ").removesuffix("?").replace(",", "")
    for name, sign in SIGNS.items():
        words = words.replace(f" {name} ", f"|{sign}|")
    first, *rest = words.split("|")
    value = NUMBERS[first]
    for sign, operand in zip(rest[::2], rest[1::2], strict=True):
        result = exact_value(f"{value}{sign}{NUMBERS[operand]}")
        assert result >= 0
        assert result.denominator == 1
        value = int(result)
    return value


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (12, "twelve"),
        (20, "twenty"),
        (34, "thirty-four"),
        (99, "ninety-nine"),
        (100, "one hundred"),
        (205, "two hundred five"),
        (999, "nine hundred ninety-nine"),
    ],
)
def test_numbers_in_words(number: int, words: str) -> None:
    assert number_in_words(number) == words


def test_no_two_numbers_share_their_words() -> None:
    assert len(NUMBERS) == 1000


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_question_expression_and_answer_agree(difficulty: str) -> None:
    problems = generate_problems(500, 3, difficulty)
    for problem in problems:
        assert value_of(problem.question) == exact_value(problem.expression) == int(problem.answer), problem
    operations = Counter(sum(token in "+-*/" for token in tokenize(problem.expression)) for problem in problems)
    assert tuple(sorted(operations)) == DIFFICULTIES[difficulty].operations
    assert {sign for problem in problems for sign in "+-*/" if sign in problem.expression} == set("+-*/")


def test_a_comma_closes_what_stands_before_it() -> None:
    expressions = {problem.question: problem.expression for problem in generate_problems(2000, 1, "medium")}
    sums = [(question, text) for question, text in expressions.items() if "plus" in question and ", times" in question]
    assert sums
    for question, text in sums:
        assert re.fullmatch(r"\(\d+\+\d+\)\*\d+", text), question


def test_the_same_seed_gives_the_same_questions() -> None:
    problems = generate_problems(200, 5, "medium")
    assert generate_problems(200, 5, "medium") == problems
    assert generate_problems(50, 5, "medium") == problems[:50]
    assert generate_problems(200, 6, "medium") != problems
    assert len({problem.question for problem in problems}) == 200


def test_too_many_questions_are_an_error() -> None:
    with pytest.raises(
        UserInputError, match=r"found only \d+ distinct easy questions of the 3000 wanted: ask for fewer"
    ):
        generate_problems(3000, 1, "easy")


def test_written_rows(tmp_path: Path) -> None:
    files = write_words(tmp_path, 60, 30, seed=1, demonstrations=20, agent_name="react_agent")
    assert {split: file.name for split, file in files.items()} == {
        "train": "train.parquet",
        "test": "test.parquet",
        "demonstrations": "demonstrations.parquet",
    }
    train, test, shown = (pq.read_table(file).to_pylist() for file in files.values())
    assert (len(train), len(test), len(shown)) == (60, 30, 20)
    questions = [{row["prompt"][0]["content"] for row in rows} for rows in (train, test)]
    assert questions[0].isdisjoint(questions[1])
    assert [row["messages"][0]["content"] for row in shown] == [row["extra_info"]["question"] for row in train[:20]]
    row = test[0]
    assert row["data_source"] == "agentrl/arithmetic"
    assert row["agent_name"] == "react_agent"
    assert row["reward_model"] == {"ground_truth": str(value_of(row["prompt"][0]["content"])), "style": "rule"}
    assert set(row["extra_info"]) == {"split", "index", "question", "answer", "expression"}
    assert truth_problem(RowReader("the row", "prompt").sample(row, 0, 0)) is None


async def test_a_demonstration_is_what_the_calculator_and_the_score_say() -> None:
    (tool,) = load_tools("tools/calculator.yaml")
    for problem in generate_problems(50, 1, "hard"):
        _, call, result, answer = demonstration_row(problem)["messages"]
        function = call["tool_calls"][0]["function"]
        assert function["name"] == tool.name
        said = await tool.build().execute(json.loads(function["arguments"]))
        assert (said.text, result["content"]) == (problem.answer, problem.answer)
        assert compute_score(answer["content"], problem.answer) == 1.0


@pytest.mark.parametrize(("share", "calling"), [(0.0, []), (0.25, [3, 7]), (0.5, [1, 3, 5, 7]), (1.0, list(range(8)))])
def test_a_share_of_the_demonstrations_calls(tmp_path: Path, share: float, calling: list[int]) -> None:
    files = write_words(tmp_path, 8, 5, seed=1, demonstrations=8, call_share=share)
    shown = pq.read_table(files["demonstrations"]).to_pylist()
    assert [place for place, row in enumerate(shown) if row["messages"][1].get("tool_calls")] == calling
    answers = [row["reward_model"]["ground_truth"] for row in pq.read_table(files["train"]).to_pylist()]
    assert [row["messages"][-1]["content"] for row in shown] == [f"The answer is {answer}." for answer in answers]


def test_without_demonstrations_there_is_no_such_file(tmp_path: Path) -> None:
    write_words(tmp_path, 5, 5, seed=1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["test.parquet", "train.parquet"]


def test_demonstrations_are_of_training_questions(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="got 6 demonstrations, wanted at most 5: they answer"):
        write_words(tmp_path, 5, 5, seed=1, demonstrations=6)
