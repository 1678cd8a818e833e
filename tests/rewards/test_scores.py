"""Score functions against the values of the field's datasets."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_time import takes_less
from hypothesis import given
from hypothesis import strategies as st

from agentrl.boxed import last_boxed
from agentrl.errors import PluginError, RewardError
from agentrl.rewards import default_compute_score
from agentrl.rewards.dispatcher import GOLD_PROBLEMS, QUESTIONS, SCORES, truth_problem
from agentrl.rewards.scores import arithmetic, gsm8k, math, search_em
from agentrl.rewards.scores.numbers import last_number, to_number
from agentrl.types import Sample


@pytest.mark.parametrize(
    ("solution", "truth", "wanted"),
    [
        ("#### 72", "72", 1.0),
        ("#### 1,234", "1234", 1.0),
        ("#### 1234", "1,234", 1.0),
        ("#### 72.", "72", 1.0),
        ("#### 72.0", "72", 1.0),
        ("#### $72", "72", 1.0),
        ("#### $1,234.50.", 1234.5, 1.0),
        ("so it is\n#### -5", "-5", 1.0),
        ("#### -$5", "-5", 1.0),
        ("#### $-5", "-5", 1.0),
        (r"#### \$5", "5", 1.0),
        ("#### 5 wait #### 6", "6", 1.0),
        ("#### 5 wait #### 6", "5", 0.0),
        ("#### 3/4", "3", 0.0),
        ("#### 34/4", "3", 0.0),
        ("#### 1,234/5", "1", 0.0),
        ("#### 72abc", "72", 0.0),
        ("#### 1.2.3", "1.2", 0.0),
        ("#### .5", "0.5", 1.0),
        ("#### 72 dollars", "72", 1.0),
        ("#### 72\nanything else", "72", 1.0),
        ("the answer is 72", "72", 0.0),
        ("", "72", 0.0),
        ("####", "72", 0.0),
        ("#### many", "72", 0.0),
        ("#### 72", "#### 72", 1.0),
        ("#### 72", "48/2 = 24\n48+24 = 72\n#### 72", 1.0),
        ("#### 0.1", "0.10", 1.0),
        ("#### 12345678901234567890123", "12345678901234567890124", 0.0),
    ],
)
def test_gsm8k_strict(solution: str, truth: object, wanted: float) -> None:
    assert gsm8k.compute_score(solution, truth) == wanted


@pytest.mark.parametrize(
    ("solution", "truth", "wanted"),
    [
        ("it is 72.", "72", 1.0),
        ("costs $72", "72", 1.0),
        ("1,234", "1234", 1.0),
        ("first 5, then 10, 20", "20", 1.0),
        ("10-3", "3", 1.0),
        ("it is -3", "-3", 1.0),
        ("well...72", "72", 1.0),
        ("a half: .5", "0.5", 1.0),
        ("x1 and nothing else", "1", 0.0),
        ("nothing", "72", 0.0),
    ],
)
def test_gsm8k_flexible(solution: str, truth: str, wanted: float) -> None:
    assert gsm8k.compute_score(solution, truth, method="flexible") == wanted


def test_gsm8k_format_score_is_for_well_formed_wrong_answers_only() -> None:
    assert gsm8k.compute_score("#### 71", "72", format_score=0.1) == 0.1
    assert gsm8k.compute_score("#### 72", "72", format_score=0.1) == 1.0
    assert gsm8k.compute_score("71", "72", format_score=0.1) == 0.0
    assert gsm8k.compute_score("#### 3/4", "3", format_score=0.1) == 0.0
    assert gsm8k.compute_score("#### 72", "72", score=2.0) == 2.0


@pytest.mark.parametrize("truth", ["", "none", None, "3/4", "nan", True])
def test_gsm8k_refuses_a_ground_truth_that_is_no_number(truth: object) -> None:
    with pytest.raises(RewardError, match="not a number"):
        gsm8k.compute_score("#### 72", truth)


def test_gsm8k_refuses_an_unknown_method() -> None:
    with pytest.raises(RewardError, match="strict"):
        gsm8k.compute_score("#### 72", "72", method="loose")  # type: ignore[arg-type]


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**12), max_value=10**12))
def test_every_number_is_read_back(number: Decimal) -> None:
    for written in (f"{number:f}", f"{number:,f}"):
        assert to_number(written) == number
        assert gsm8k.extract_answer(f"#### {written}") == number
        assert last_number(f"so we get {written}.") == number


@given(st.text())
def test_any_text_is_scored(text: str) -> None:
    assert gsm8k.compute_score(text, "72") in (0.0, 1.0)
    assert gsm8k.compute_score(text, "72", method="flexible") in (0.0, 1.0)
    assert arithmetic.compute_score(text, "72") in (0.0, 1.0)
    assert search_em.compute_score(text, ["72"], format_reward=True) in (0.0, 0.1, 0.2, 0.8, 1.0)
    last_boxed(text)


def test_scoring_a_long_run_of_digits_takes_no_time() -> None:
    assert takes_less(lambda: gsm8k.compute_score("#### " + "1" * 20_000 + "x", "72"), 1)
    assert takes_less(lambda: gsm8k.compute_score("1," * 20_000 + "x", "72", method="flexible"), 1)


def test_arithmetic_reads_the_final_answer_only() -> None:
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3+4"}}\n</tool_call>'
    assert arithmetic.compute_score("The answer is 7.", "7") == 1.0
    assert arithmetic.compute_score("7 or 8", "7") == 0.0
    assert arithmetic.compute_score(call, "4") == 0.0
    messages = [
        {"role": "user", "content": "3+4"},
        {"role": "assistant", "content": call},
        {"role": "tool", "content": "7"},
        {"role": "assistant", "content": "It is 7.0"},
    ]
    assert arithmetic.compute_score(f"{call}\nIt is 7.0", "7", {"messages": messages}) == 1.0
    assert arithmetic.compute_score(call, "7", {"messages": messages[:3]}) == 0.0
    with pytest.raises(RewardError):
        arithmetic.compute_score("7", None)


def test_search_exact_match() -> None:
    score = search_em.compute_score
    assert score("<answer>the Beatles.</answer>", {"target": ["Beatles"]}) == 1.0
    assert score("<answer>Paris</answer> no, <answer>Rome</answer>", {"target": ["Rome"]}) == 1.0
    assert score("<answer>Paris</answer> no, <answer>Rome</answer>", {"target": ["Paris"]}) == 0.0
    assert score("<answer>New York City</answer>", {"target": ["New York"]}) == 0.0
    assert score("<answer>New York City</answer>", {"target": ["New York"]}, method="substring") == 1.0
    assert score("<answer>B</answer>", {"target": ["A", "b"]}) == 1.0
    assert score("Beatles", {"target": ["Beatles"]}) == 0.0
    assert score("<answer>x</answer>", {"target": ["y"]}, format_score=0.1) == 0.1
    assert score("<answer>U.S.A</answer>", "USA") == 1.0


def test_search_gold_that_normalises_to_nothing_never_matches() -> None:
    assert search_em.compute_score("<answer></answer>", {"target": ["the"]}) == 0.0
    assert search_em.compute_score("<answer>anything</answer>", {"target": ["..."]}, method="substring") == 0.0


@pytest.mark.parametrize(
    "truth",
    ['{"target": ["Beatles", "The Beatles"]}', '["Beatles"]', {"target": '["x", "Beatles"]'}, ' {"target": "Beatles"}'],
)
def test_search_reads_gold_answers_that_are_json_text(truth: Any) -> None:
    assert search_em.compute_score("<answer>the Beatles</answer>", truth) == 1.0
    assert search_em.compute_score("<answer>target</answer>", truth, method="substring") == 0.0


@pytest.mark.parametrize("number", [5, np.int64(5), [np.int64(5)]])
def test_numbers_are_gold_answers(number: Any) -> None:
    assert search_em.compute_score("<answer>5</answer>", {"target": number}) == 1.0


def test_what_is_missing_is_no_gold_answer() -> None:
    truth = {"target": [None, float("nan"), "Rome", 1969]}
    scores = [search_em.compute_score(f"<answer>{said}</answer>", truth) for said in ("None", "nan", "Rome", "1969")]
    assert scores == [0.0, 0.0, 1.0, 1.0]


NO_GOLD = [None, {}, [], [None], [float("nan")]]


@pytest.mark.parametrize(
    "truth",
    [*({"target": gold} for gold in NO_GOLD), None, {}, 3, '{"target": []}', "[]", '{"answers": ["x"]}'],
)
def test_search_needs_a_gold_answer(truth: object) -> None:
    with pytest.raises(RewardError, match="gold"):
        search_em.compute_score("<answer>x</answer>", truth)


def test_search_format_reward() -> None:
    gold = {"target": ["Rome"]}
    turn = "<think>I look it up.</think>\n<search>capital of Italy</search>\n"

    def score(text: str) -> float:
        return search_em.compute_score(text, gold, format_reward=True)

    assert score(turn + "<think>found</think><answer>Rome</answer>") == 1.0
    assert score("<answer>Rome</answer>") == 0.8
    assert score(turn + "<think>found</think><answer>Paris</answer>") == 0.2
    assert score("<answer>Paris</answer>") == 0.1
    assert score(turn) == 0.2
    assert score("Rome") == 0.0
    assert score("") == 0.0


@pytest.mark.parametrize(
    ("solution", "truth", "wanted"),
    [
        (r"so \boxed{72}", "72", 1.0),
        (r"\boxed{1} then \boxed{2}", "2", 1.0),
        (r"\boxed{1} then \boxed{2}", "1", 0.0),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", 1.0),
        (r"\boxed{\dfrac{1}{2}}", r"\frac12", 1.0),
        (r"\boxed{0.5}", r"\frac{1}{2}", 1.0),
        (r"\boxed{1,234.0}", "1234", 1.0),
        (r"\boxed{2\sqrt{2}}", r"\sqrt{8}", 1.0),
        (r"\boxed{(1, 2)}", "(1,2)", 1.0),
        (r"\boxed{x+1}", "1+x", 1.0),
        (r"\boxed{3}", "4", 0.0),
        (r"\boxed{}", "", 0.0),
        (r"\boxed{3", "3", 0.0),
        ("72", "72", 0.0),
    ],
)
def test_math(solution: str, truth: str, wanted: float) -> None:
    assert math.compute_score(solution, truth) == wanted


def test_math_in_a_script_without_a_main_guard(tmp_path: Path) -> None:
    """Comparing takes a process, and that one must not run the script again."""
    script = tmp_path / "script.py"
    script.write_text(
        "from agentrl.rewards import default_compute_score as score\n"
        "print('once', score('lighteval/MATH', r'\\boxed{0.5}', r'\\frac{1}{2}'))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.returncode) == ("once 1.0\n", 0), done.stderr


def test_math_comparison_that_never_ends_counts_as_wrong() -> None:
    assert math.compute_score(r"\boxed{9^{9^{9^{9^{9}}}}}", "3") == 0.0


def test_default_score_routes_by_data_source() -> None:
    assert default_compute_score("openai/gsm8k", "#### 72", "72") == 1.0
    assert default_compute_score("openai/gsm8k", "72", "72", method="flexible") == 1.0
    assert default_compute_score("agentrl/arithmetic", "72", "72", {"messages": []}) == 1.0
    assert default_compute_score("searchR1_nq", "<answer>a b</answer>", {"target": ["b"]}) == 1.0
    assert default_compute_score("lighteval/MATH", r"\boxed{1}", "1") == 1.0


@pytest.mark.parametrize(
    ("source", "right", "wrong", "truth"),
    [
        ("gsm8k", "#### 72", "#### 7", "72"),
        *((name, "<answer>the Beatles</answer>", "<answer>b</answer>", {"target": ["Beatles"]}) for name in QUESTIONS),
        ("hiyouga/geometry3k", r"<think>a</think>\boxed{2\sqrt{3}}", r"\boxed{3}", r"2 \sqrt { 3 }"),
        ("agentrl/pictures", "The square is not blue, it is Red.", "red, or blue", "red"),
        ("agentrl/pictures", "I see 3 dots", "three", "3"),
        ("HuggingFaceH4/MATH-500", r"\boxed{0.5}", r"\boxed{3}", r"\frac{1}{2}"),
    ],
)
def test_data_sources_by_their_common_names(source: str, right: str, wrong: str, truth: Any) -> None:
    assert default_compute_score(source, right, truth) == 1.0
    assert default_compute_score(source, wrong, truth) == 0.0


@pytest.mark.parametrize(
    ("solution", "score"),
    [
        ("<think>a\nb</think> so \\boxed{2}.", 1.0),
        ("\\boxed{2}", 0.9),
        ("a <think>a</think> \\boxed{2}", 0.9),
        ("<think>\\boxed{2}</think>", 0.9),
        ("<think>a</think> \\boxed{3}", 0.1),
        ("<think>a</think> 2", 0.0),
        ("", 0.0),
    ],
)
def test_geometry_is_scored_for_its_answer_and_its_form(solution: str, score: float) -> None:
    assert default_compute_score("hiyouga/geometry3k", solution, "2") == pytest.approx(score)


@pytest.mark.parametrize(("given", "near"), [("GSM8K", "gsm8k"), ("hotpot_qa", "hotpotqa"), ("NQ", "nq")])
def test_an_unknown_source_names_the_nearest(given: str, near: str) -> None:
    with pytest.raises(PluginError, match=f"Did you mean '{near}'"):
        default_compute_score(given, "", "")


@pytest.mark.parametrize("source", ["openai/gsm8k", "agentrl/arithmetic", "lighteval/MATH", "searchR1_nq"])
def test_a_row_without_a_ground_truth_is_never_scored(source: str) -> None:
    with pytest.raises(RewardError, match=r"no `reward_model\.ground_truth`"):
        default_compute_score(source, r"None \boxed{None} #### None <answer>None</answer>", None)


def test_default_score_names_the_known_sources() -> None:
    with pytest.raises(PluginError, match=r"Did you mean 'openai/gsm8k'.*searchR1_\*"):
        default_compute_score("openai/gsm8", "#### 72", "72")
    with pytest.raises(PluginError, match=r"reward_model\.sandbox_fusion\.url"):
        default_compute_score("codecontests", "x", None)
    with pytest.raises(PluginError, match="Did you mean 'codecontests'"):
        default_compute_score("codecontest", "x", None)


SEARCH, MATH, TACO = "searchR1_nq", "lighteval/MATH", "taco"


@pytest.mark.parametrize(
    ("source", "truth", "problem"),
    [
        ("openai/gsm8k", "four", "the ground truth 'four' is not a number"),
        ("openai/gsm8k", ["4"], "is not a number"),
        ("openai/gsm8k", {"answer": 4}, "is not a number"),
        ("openai/gsm8k", "She has\n#### many", "is not a number"),
        ("openai/gsm8k", "null", "the ground truth 'null' is not a number"),
        ("agentrl/arithmetic", "seven", "is not a number"),
        ("agentrl/arithmetic", [7], "is not a number"),
        (MATH, {"answer": "\\frac12"}, "is neither text nor a number"),
        (MATH, ["\\frac12"], "is neither text nor a number"),
        (MATH, True, "is neither text nor a number"),
        (MATH, "$ $", "holds no answer"),
        (MATH, "\\boxed{}", "holds no answer"),
        (MATH, "null", "the text 'null', which stands for no answer"),
        (MATH, " None", "the text 'None', which stands for no answer"),
        (MATH, "['\\\\frac12']", "is how Python shows a list or a mapping, and no answer"),
        (MATH, '["72"]', "and no answer: write one answer as text"),
        (SEARCH, {"target": [None]}, "holds no gold answer"),
        (SEARCH, {"target": ["the", "..."]}, "no answer can equal the ground truth"),
        (SEARCH, "!", "no answer can equal the ground truth"),
        (SEARCH, "null", "holds no gold answer (the ground truth is the text 'null'"),
        (SEARCH, {"target": "nan"}, "holds no gold answer (the ground truth is the text 'nan'"),
        (SEARCH, "['a', 'b']", "is how Python shows a list or a mapping, and no answer"),
        (SEARCH, "['a' 'b']", "is how Python shows a list"),
        (SEARCH, "{'target': ['a']}", "is how Python shows a list"),
        (SEARCH, {"target": "['a', 'b']"}, "is how Python shows a list"),
        (SEARCH, {"target": ["['a', 'b']"]}, "is how Python shows a list"),
        (SEARCH, "array(['a'], dtype=object)", "is how Python shows a list"),
        (TACO, "none", "the ground truth of a coding task: got 'none', wanted a list of asserts"),
        (TACO, {"inputs": [], "outputs": []}, "the ground truth of a coding task: got"),
        (TACO, '{"inputs": ["1"], "outputs": []}', "got 1 inputs and 0 outputs"),
        (TACO, [{"input": "1", "output": None}], "got the test"),
        (TACO, ["assert f(1) = 2"], "which is not Python"),
        (TACO, ["f(1) == 2"], "in which nothing can fail"),
    ],
)
def test_a_gold_that_cannot_be_scored_is_known_before(source: str, truth: Any, problem: str) -> None:
    found = truth_problem(Sample(0, [], source, reward_model={"ground_truth": truth}))
    assert found is not None
    assert problem in found


@pytest.mark.parametrize(
    ("source", "truth"),
    [
        ("openai/gsm8k", "1,234"),
        ("openai/gsm8k", 4),
        ("openai/gsm8k", "2+2\n#### 4"),
        ("agentrl/arithmetic", 0),
        ("agentrl/arithmetic", 2.5),
        (MATH, "[1, 2)"),
        (MATH, "\\{1, 2\\}"),
        (MATH, "(1, 2)"),
        (MATH, "{1, 2}"),
        (MATH, 0),
        (MATH, "0"),
        (MATH, "\\text{(A)}"),
        (MATH, "\\boxed{\\frac12}"),
        (MATH, "\\emptyset"),
        (SEARCH, "null and void"),
        (SEARCH, ["the", "x"]),
        (SEARCH, {"target": ["nan"]}),
        (SEARCH, '["a", "b"]'),
        (SEARCH, "[citation needed]"),
        (SEARCH, {"target": 1969}),
        (SEARCH, "(What's the Story) Morning Glory?"),
        (TACO, '{"inputs": ["1"], "outputs": ["2"]}'),
        (TACO, ["assert f(1) == 2"]),
    ],
)
def test_a_gold_that_can_be_scored(source: str, truth: Any) -> None:
    assert truth_problem(Sample(0, [], source, reward_model={"ground_truth": truth})) is None


def test_every_built_in_score_says_whether_it_can_read_a_gold() -> None:
    assert set(SCORES.values()) == set(GOLD_PROBLEMS)


def test_checks_of_other_languages_are_not_read_as_python() -> None:
    row = Sample(0, [], TACO, reward_model={"ground_truth": ['[ "$(f 1)" = 2 ]']})
    assert truth_problem(row, language="bash") is None
    assert truth_problem(row, language=None) is None
    assert truth_problem(row) is not None
