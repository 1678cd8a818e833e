"""The python demo's rows: the code that demonstrations run is right, and prints what they say it prints."""

from __future__ import annotations

import json
import random
from contextlib import redirect_stdout
from io import StringIO

import pyarrow.parquet as pq
import pytest
import yaml

from agentrl.cli.demo import python
from agentrl.cli.demo.description import DataRequest
from agentrl.cli.demo.python import CODE, PYTHON, CodeHabit
from agentrl.cli.demo.tokenizer import VOCAB_SIZE, build_tokenizer
from agentrl.rewards.scores import arithmetic

QUESTIONS = [(asked, (7, 30, 12)) for asked in CODE]


def printed(code: str) -> str:
    out = StringIO()
    with redirect_stdout(out):
        exec(code, {})  # the demo's own code
    return out.getvalue().strip()


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_code_prints_the_answer(question):
    assert printed(python.code_for(question)) == python.answer_to(question)


def test_each_habit_reads_as_it_should():
    rng = random.Random(2)
    right = python.code_demonstration(CodeHabit.RUN_CODE, ("spread", (7, 30, 12)), rng)
    (call,) = right[1]["tool_calls"]
    assert right[0]["content"] == "spread of 7,30,12"
    assert json.loads(call["function"]["arguments"]) == {"code": "n=[7,30,12]; print(max(n)-min(n))"}
    assert [message["content"] for message in right[2:]] == ["23", "The answer is 23"]
    for question in QUESTIONS:
        wrong = python.code_demonstration(CodeHabit.WRONG_CODE, question, rng)
        code = json.loads(wrong[1]["tool_calls"][0]["function"]["arguments"])["code"]
        assert code != python.code_for(question)
        assert wrong[2]["content"] == printed(code)
        assert wrong[3]["content"] == f"The answer is {wrong[2]['content']}"
        direct = python.code_demonstration(CodeHabit.DIRECT, question, rng)
        assert [message["role"] for message in direct] == ["user", "assistant"]


def test_held_out_numbers_are_in_neither_stage(tmp_path):
    data = python.write_number_lists(DataRequest(tmp_path, 200, train_rows=80, held_out_rows=20, seed=1))
    train, held_out = (pq.read_table(file).to_pylist() for file in (data.train, data.held_out))
    numbers = [[row["prompt"][0]["content"].split(" of ")[-1] for row in rows] for rows in (train, held_out)]
    talks = pq.read_table(data.demonstrations).column("messages").to_pylist()
    shown = {messages[0]["content"].split(" of ")[-1] for messages in talks}
    assert (len(set(numbers[0])), len(set(numbers[1]))) == (80, 20)
    assert len(shown) == 200
    assert not set(numbers[0]) & set(numbers[1])
    assert not shown & set(numbers[1])
    for row in held_out:
        truth = row["reward_model"]["ground_truth"]
        assert arithmetic.compute_score(f"The answer is {truth}", truth) == 1


def test_code_is_a_few_tokens():
    tokenizer = build_tokenizer(PYTHON.pieces)
    assert len(tokenizer) <= VOCAB_SIZE
    for question in QUESTIONS:
        for text, tokens in ((python.code_for(question), 9), (python.question_text(question), 9)):
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert len(ids) == tokens
            assert tokenizer.decode(ids) == text


def test_the_run_gets_the_address_of_the_sandbox(tmp_path):
    (override,) = python.use_sandbox(tmp_path, "http://127.0.0.1:5")
    assert override == f'actor_rollout_ref.rollout.multi_turn.tool_config_path="{tmp_path}/tools.yaml"'
    (tool,) = yaml.safe_load((tmp_path / "tools.yaml").read_text())["tools"]
    assert tool["class_name"] == "python"
    assert tool["config"]["sandbox_url"] == "http://127.0.0.1:5"
