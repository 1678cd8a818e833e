"""GSM8K: which texts are one number, in answers, ground truths, the grading tool and the user who asks again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.data.preprocess.gsm8k import final_answer
from agentrl.errors import RewardError
from agentrl.interactions.gsm8k import Gsm8kInteraction
from agentrl.rewards.scores import gsm8k
from agentrl.tools.calc_gsm8k_reward import CalcGsm8kReward, read_number

NOT_ONE_NUMBER = [
    ("1,2", ("12", "1", "2")),
    ("1,2,3", ("123", "1", "3")),
    ("12,34", ("1234", "12", "34")),
    ("1,2345", ("12345", "1")),
    ("1234,567", ("1234567", "1234", "567")),
    ("1,,234", ("1234", "1")),
    ("7:30", ("7", "730", "30")),
    ("10-12", ("10", "12", "1012", "-12")),
    ("10–12", ("10", "12", "1012")),
    ("1.5-2", ("1.5", "1", "2")),
    ("1,234-5", ("1234", "1", "5")),
]


@pytest.mark.parametrize(("written", "truths"), NOT_ONE_NUMBER)
def test_what_is_not_one_number_equals_none(written: str, truths: tuple[str, ...]) -> None:
    for truth in truths:
        assert gsm8k.compute_score(f"#### {written}", truth, format_score=0.1) == 0.0
        assert read_number(f"#### {written}") is None


@pytest.mark.parametrize("truth", [*(written for written, _ in NOT_ONE_NUMBER), "1 2"])
async def test_such_a_ground_truth_is_refused(truth: str) -> None:
    for form in (truth, f"48 + 24\n#### {truth}"):
        with pytest.raises(RewardError, match="not a number"):
            gsm8k.compute_score("#### 12", form)
    if " " not in truth:
        with pytest.raises(ValueError, match="wanted a number"):
            await CalcGsm8kReward({}).create(ground_truth=truth)
        with pytest.raises(ValueError, match="wanted a number"):
            await Gsm8kInteraction({}).start_interaction(ground_truth=truth)


@pytest.mark.parametrize(
    "written", ["1,234", "$1,234", "1,234.0", "1,234.", "1,234 - that is it", "1,234: done", "1,234,"]
)
def test_thousands_in_groups_of_three_are_one_number(written: str) -> None:
    assert gsm8k.compute_score(f"#### {written}", "1234") == 1.0
    assert read_number(f"#### {written}") == 1234


@pytest.mark.parametrize("truth", ["1,234", "1 234", "$ 1,234.0", "#### 1,234\n", "1234.", 1234.0])
def test_ground_truths_with_thousands(truth: object) -> None:
    assert gsm8k.compute_score("#### 1234", truth) == 1.0


@pytest.mark.parametrize(
    ("end", "truth"), [("1,234,567", "1234567"), ("$1,234.5", "1234.5"), ("1,2", "1,2"), ("-5", "-5")]
)
def test_rows_drop_the_commas_of_thousands(end: str, truth: str) -> None:
    assert final_answer(f"48 + 24\n#### {end}") == truth


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_solution_of_the_data_set_is_right(shared_folder: Path, split: str) -> None:
    for line in (shared_folder / "data" / "gsm8k" / f"{split}.jsonl").read_text().splitlines():
        solution = json.loads(line)["answer"]
        truth = final_answer(solution)
        assert gsm8k.compute_score(solution, truth) == gsm8k.compute_score(f"#### {truth}", solution) == 1.0
        assert read_number(solution) == read_number(f"#### {truth}")
