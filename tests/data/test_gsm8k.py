"""GSM8K files become rows with everything the loops need, and pass the row check."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from agentrl.config.data import DataConfig
from agentrl.data.dataset import RLHFDataset
from agentrl.data.preprocess.gsm8k import Variant, final_answer, write_gsm8k
from agentrl.errors import DataError, UserInputError
from agentrl.types import Sample


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = [{"question": f"What is {n}+1000?", "answer": f"It is:\n#### {n + 1000:,}"} for n in (1, 2, 3)]
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows[:2])) + "\n")
    (folder / "test.jsonl").write_text(json.dumps(rows[2]))
    return folder


def first(path: Path) -> Sample:
    return RLHFDataset(str(path), DataConfig())[0]


@pytest.mark.parametrize("variant", ["plain", "tool", "interaction"])
def test_every_variant_has_both_splits(source: Path, tmp_path: Path, variant: Variant) -> None:
    files = write_gsm8k(tmp_path / "out", str(source), variant)
    assert {split: len(RLHFDataset(str(file), DataConfig())) for split, file in files.items()} == {
        "train": 2,
        "test": 1,
    }
    sample = first(files["train"])
    assert sample.data_source == "openai/gsm8k"
    assert sample.ability == "math"
    assert sample.reward_model == {"style": "rule", "ground_truth": "1001"}
    assert sample.extra_info["question"] == "What is 1+1000?"
    assert sample.prompt[-1]["content"].startswith("What is 1+1000?")
    assert any("####" in message["content"] for message in sample.prompt)


def test_plain_tool_and_interaction_route_differently(source: Path, tmp_path: Path) -> None:
    plain, tool, interaction = (
        first(write_gsm8k(tmp_path / variant, str(source), variant)["train"])  # type: ignore[arg-type]
        for variant in ("plain", "tool", "interaction")
    )
    names = [sample.agent_name for sample in (plain, tool, interaction)]
    assert names == ["single_turn_agent", "tool_agent", "tool_agent"]
    assert (plain.tools_kwargs, plain.interaction_kwargs) == ({}, {})
    assert tool.tools_kwargs == {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "1001"}}}
    assert tool.extra_info["need_tools_kwargs"] is True
    assert interaction.interaction_kwargs == {"name": "gsm8k", "query": "What is 1+1000?", "ground_truth": "1001"}


def test_single_files(source: Path, tmp_path: Path) -> None:
    train, test = source / "train.jsonl", source / "test.jsonl"
    assert list(write_gsm8k(tmp_path / "one", str(train), "plain")) == ["train"]
    files = write_gsm8k(tmp_path / "two", str(train), "plain", str(test))
    assert first(files["test"]).ground_truth == "1003"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "row 0: got invalid JSON"),
        ("[1]", "row 0: got a list"),
        ('{"question": "x"}', "row 0, column 'answer': got only the columns question, wanted answer"),
        ('{"question": "x", "answer": "seven"}', "row 0, column 'answer': got no final answer"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "train.jsonl").write_text(line)
    with pytest.raises(DataError, match=message):
        write_gsm8k(tmp_path / "out", str(tmp_path), "plain")
    assert not (tmp_path / "out").exists()


def test_missing_source(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        write_gsm8k(tmp_path, str(tmp_path / "nowhere"), "plain")


def test_the_hub_needs_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserInputError, match="pip install datasets"):
        write_gsm8k(tmp_path, "hub", "plain")


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("#### 72", "72"),
        ("a #### 1\n#### 1,234", "1234"),
        ("#### $5", "5"),
        ("#### -3", "-3"),
        ("72", None),
        ("####", None),
    ],
)
def test_final_answer(solution: str, answer: str | None) -> None:
    assert final_answer(solution) == answer


def test_the_real_files(shared_folder: Path, tmp_path: Path) -> None:
    files = write_gsm8k(tmp_path, str(shared_folder / "data" / "gsm8k"), "tool")
    train, test = (RLHFDataset(str(files[split]), DataConfig()) for split in ("train", "test"))
    assert (len(train), len(test)) == (7473, 1319)
    assert (train[0].ground_truth, test[0].ground_truth) == ("72", "18")
    assert train.filter_overlong(lambda sample: 1, 1, drop=False) == 0
