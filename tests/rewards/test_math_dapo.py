"""DAPO's mathematics: the last `Answer:` line, 1 or -1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.config.data import DataConfig
from agentrl.data.dataset import RLHFDataset
from agentrl.rewards.answers import answer_reader
from agentrl.rewards.dispatcher import default_compute_score, truth_problem


@pytest.mark.parametrize(
    ("solution", "truth", "pred", "acc"),
    [
        ("So 3.\nAnswer: 34", "34", "34", 1.0),
        ("Answer: 33\nNo:\nAnswer: $34$.", "34", "$34$.", 1.0),
        ("Answer: 34\nNo:\nanswer: 33", "34", "33", 0.0),
        (r"Answer: \boxed{\frac12}", "0.5", r"\frac12", 1.0),
        ("**Answer:** 34", "34", "34", 1.0),
        ("**Answer**: 34", "34", "34", 1.0),
        ("Answer:\n34", "34", "34", 1.0),
        ("Answer: \\boxed{\n34\n}", "34", "\n34\n", 1.0),
        ("Answer: \\[\n34\n\\]", "34", "34", 1.0),
        (r"It is \boxed{34}.", "34", "", 0.0),
        ("Answer:", "34", "", 0.0),
        ("", "34", "", 0.0),
    ],
)
def test_the_last_answer_line(solution: str, truth: str, pred: str, acc: float) -> None:
    found = default_compute_score("math_dapo", solution, truth)
    assert found == {"score": 2 * acc - 1, "acc": acc, "pred": pred}


@pytest.mark.parametrize("source", ["math_dapo", "aime", "aime2024", "aime_2025"])
def test_sources(source: str) -> None:
    assert default_compute_score(source, "Answer: 204", "204")["score"] == 1.0
    boxed = default_compute_score(source, r"\boxed{204}", "204", strict_box_verify=True)
    assert boxed == {"score": 1.0, "acc": 1.0, "pred": "204"}


def test_numina_is_mathematics_in_a_box() -> None:
    assert default_compute_score("numina_aops_forum", r"\boxed{0.5}", r"\frac{1}{2}") == 1.0


def test_votes_count_answer_lines() -> None:
    read: Any = answer_reader("math_dapo")
    assert (read("Answer: 3 4"), read("none")) == ("34", None)


def test_rows_of_dapo_can_be_read(tmp_path: Path) -> None:
    row = {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": "2 + 2?"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": "4", "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4"},
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "dapo.parquet")
    (sample,) = RLHFDataset(str(tmp_path / "dapo.parquet"), DataConfig())
    assert sample.ground_truth == "4"
    assert truth_problem(sample) is None
