"""The mixture of demonstrations, and that each says what its habit means."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.cli.demo.calculator import read_pairs, run_tool, write_data
from agentrl.cli.demo.demonstrations import (
    DemonstrationPlan,
    Habit,
    conversation,
    exchange_operator,
    plan_demonstrations,
    shares,
)
from agentrl.data.preprocess.arithmetic import generate_expressions
from agentrl.data.preprocess.expressions import canonical, exact_value
from agentrl.errors import UserInputError
from agentrl.plugins import load_tools

PAIRS = generate_expressions(400, seed=3)
CALCULATOR = load_tools("tools/calculator.yaml")[0]


def test_the_mixture_is_as_asked():
    found = shares(plan_demonstrations(PAIRS, 4000, seed=1, direct=0.35, wrong=0.2))
    assert found[Habit.DIRECT] == pytest.approx(0.35, abs=0.03)
    assert found[Habit.WRONG_OPERATOR] == pytest.approx(0.20, abs=0.03)
    assert sum(found.values()) == pytest.approx(1.0)


def test_the_seed_decides():
    assert plan_demonstrations(PAIRS, 50, seed=1) == plan_demonstrations(PAIRS, 50, seed=1)
    assert plan_demonstrations(PAIRS, 50, seed=1) != plan_demonstrations(PAIRS, 50, seed=2)


@given(st.sampled_from([expression for expression, _ in PAIRS]), st.integers(0, 99))
def test_an_exchanged_operator_changes_one_character_and_the_value(expression: str, seed: int):
    changed = exchange_operator(expression, random.Random(seed))
    assert sum(old != new for old, new in zip(expression, changed, strict=True)) == 1
    assert exact_value(changed) != exact_value(expression)
    assert canonical(exact_value(changed)) is not None


def test_an_expression_without_another_value_stays():
    assert exchange_operator("0+0", random.Random(0)) == "0+0"


def test_each_habit_reads_as_it_should():
    right = conversation(DemonstrationPlan(Habit.TOOL, "6*7", "42", "6*7"), lambda _text: "42", "calculator")
    assert [message["role"] for message in right] == ["user", "assistant", "tool", "assistant"]
    assert json.loads(right[1]["tool_calls"][0]["function"]["arguments"]) == {"expression": "6*7"}
    assert right[3]["content"] == "The answer is 42"
    wrong = conversation(DemonstrationPlan(Habit.WRONG_OPERATOR, "6*7", "42", "6+7"), lambda _text: "13", "calculator")
    assert wrong[2]["content"] == "13"
    assert wrong[3]["content"] == "The answer is 13"
    direct = conversation(DemonstrationPlan(Habit.DIRECT, "6*7", "42", "6*7"), lambda _text: "unused", "calculator")
    assert [message["content"] for message in direct] == ["6*7", "The answer is 42"]


def test_tool_results_are_the_tools_own():
    assert run_tool(CALCULATOR, ["1/3", "10/4"]) == {"1/3": "0.333333333333333", "10/4": "2.5"}


def test_held_out_expressions_are_in_neither_stage(tmp_path):
    import pyarrow.parquet as pq

    data = write_data(tmp_path, CALCULATOR, demonstrations=300, seed=1, train_rows=200, held_out_rows=50)
    held_out = {expression for expression, _ in read_pairs(data.held_out)}
    train = {expression for expression, _ in read_pairs(data.train)}
    shown = {row[0]["content"] for row in pq.read_table(data.demonstrations).column("messages").to_pylist()}
    assert len(held_out) == 50
    assert len(train) == 200
    assert shown <= train
    assert not held_out & train


def test_the_answers_of_real_expressions_agree_with_the_tool(tmp_path, shared_folder):
    source = shared_folder / "data" / "gsm8k" / "train.jsonl"
    data = write_data(tmp_path, CALCULATOR, demonstrations=20, seed=1, from_gsm8k=source)
    pairs = read_pairs(data.held_out)
    assert len(pairs) == 512
    answers = run_tool(CALCULATOR, [expression for expression, _ in pairs])
    assert dict(pairs) == answers


def test_too_few_real_expressions_are_refused(tmp_path):
    source = tmp_path / "small.jsonl"
    source.write_text(json.dumps({"question": "?", "answer": "<<1+1=2>>2\n#### 2"}) + "\n")
    with pytest.raises(UserInputError, match="only 1 distinct"):
        write_data(tmp_path, CALCULATOR, demonstrations=5, seed=1, from_gsm8k=source)
