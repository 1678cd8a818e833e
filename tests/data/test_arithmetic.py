"""The arithmetic generator: seeded, distinct, exact, and mixed as GSM8K's annotations are."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.data.preprocess.arithmetic import (
    expressions_from_gsm8k,
    generate_expressions,
    split_expressions,
    write_arithmetic,
)
from agentrl.data.preprocess.arithmetic_mix import OPERATOR_SEQUENCES
from agentrl.data.preprocess.expressions import canonical, clean_annotation, exact_value
from agentrl.errors import UserInputError

MEAN_LENGTH = 5.32
"""Characters of an expression of GSM8K's annotations."""


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("48/2", 24),
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("10-2-3", 5),
        ("24/4/2", 3),
        ("0.1*30", 3),
        ("1/3*30", 10),
        (".5*4", 2),
    ],
)
def test_expressions_are_evaluated_exactly(expression: str, value: int) -> None:
    assert exact_value(expression) == value


@pytest.mark.parametrize("text", ["", "2+", "(2+3", "2)", "2**3", "2//3", "x+1", "-3+4", "1,000+1", "()"])
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        exact_value(text)


@given(st.integers(0, 10**6), st.sampled_from("+-*"), st.integers(0, 10**6), st.sampled_from("+-*"), st.integers(0, 99))
def test_precedence_is_pythons(a: int, first: str, b: int, second: str, c: int) -> None:
    expression = f"{a}{first}{b}{second}{c}"
    assert exact_value(expression) == eval(expression)


@pytest.mark.parametrize(
    ("value", "text"),
    [("24", "24"), ("100", "100"), ("1/4", "0.25"), ("-7/2", "-3.5"), ("0", "0"), ("1/10000", "0.0001"), ("1/3", None)],
)
def test_canonical_numbers(value: str, text: str | None) -> None:
    assert canonical(Fraction(value)) == text


@pytest.mark.parametrize(
    ("annotation", "pair"),
    [
        ("48/2=24", ("48/2", "24")),
        ("7 * 3=21", ("7*3", "21")),
        (".50*4=2.00", ("0.5*4", "2")),
        ("20+05=25=25", ("20+5", "25")),
        ("100/3=33.33", None),
        ("5=5", None),
        ("5//2=2", None),
        ("4/0=0", None),
        ("x*2=4", None),
    ],
)
def test_annotations_are_cleaned_and_computed(annotation: str, pair: tuple[str, str] | None) -> None:
    assert clean_annotation(annotation) == pair


def test_generator_is_seeded_distinct_and_exact() -> None:
    pairs = generate_expressions(1500, seed=3)
    assert pairs == generate_expressions(1500, seed=3)
    assert pairs != generate_expressions(1500, seed=4)
    assert pairs[:100] == generate_expressions(100, seed=3)
    assert len({expression for expression, _ in pairs}) == 1500
    for expression, answer in pairs:
        assert canonical(exact_value(expression)) == answer
        assert re.fullmatch(r"\d+(\.\d{1,4})?", answer)


def test_excluded_expressions_never_come_out() -> None:
    first = {expression for expression, _ in generate_expressions(400, seed=1)}
    assert first.isdisjoint(expression for expression, _ in generate_expressions(400, seed=1, exclude=first))


def test_length_and_operator_mix_are_those_of_gsm8k() -> None:
    pairs = generate_expressions(3000, seed=5)
    sequences = Counter("".join(re.findall(r"[-+*/]", expression)) for expression, _ in pairs)
    for operators, share in OPERATOR_SEQUENCES.items():
        assert sequences[operators] / 3000 == pytest.approx(share, abs=0.03)
    assert sum(len(expression) for expression, _ in pairs) / 3000 == pytest.approx(MEAN_LENGTH, rel=0.1)


def test_the_recorded_mix_is_measured_on_gsm8k(shared_folder: Path) -> None:
    text = (shared_folder / "data" / "gsm8k" / "train.jsonl").read_text()
    cleaned = [pair for pair in map(clean_annotation, re.findall(r"<<([^<>]*)>>", text)) if pair]
    sequences = Counter("".join(re.findall(r"[-+*/]", expression)) for expression, _ in cleaned)
    for operators in ("*", "+", "-", "/", "++", "/*", "*/"):
        assert sequences[operators] / len(cleaned) == pytest.approx(OPERATOR_SEQUENCES[operators], abs=0.005)
    assert sum(len(expression) for expression, _ in cleaned) / len(cleaned) == pytest.approx(MEAN_LENGTH, abs=0.05)


def test_real_expressions_from_gsm8k(shared_folder: Path) -> None:
    pairs = expressions_from_gsm8k(shared_folder / "data" / "gsm8k")
    assert pairs[0] == ("48/2", "24")
    assert len(pairs) > 10_000
    assert len(dict(pairs)) == len(pairs)


def test_splits_are_disjoint_and_too_many_is_an_error() -> None:
    pairs = generate_expressions(50, seed=1)
    train, test = split_expressions(pairs, 30, 20, seed=1)
    assert sorted(train + test) == sorted(pairs)
    with pytest.raises(UserInputError, match="only 50 distinct"):
        split_expressions(pairs, 40, 20, seed=1)


def test_written_rows(tmp_path: Path) -> None:
    files = write_arithmetic(tmp_path, train=20, test=10, seed=1)
    train, test = (pq.read_table(files[split]).to_pylist() for split in ("train", "test"))
    assert (len(train), len(test)) == (20, 10)
    row = train[0]
    assert row["data_source"] == "agentrl/arithmetic"
    assert row["agent_name"] == "tool_agent"
    expression = row["prompt"][0]["content"]
    assert row["reward_model"] == {"ground_truth": canonical(exact_value(expression)), "style": "rule"}
    prompts = [{row["prompt"][0]["content"] for row in rows} for rows in (train, test)]
    assert prompts[0].isdisjoint(prompts[1])
