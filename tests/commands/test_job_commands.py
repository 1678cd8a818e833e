"""The field's generation and evaluation, by its modules and its YAML: the second reads what the first wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from stage import FIELD, Stage
from typer.testing import CliRunner

from agentrl.cli import app

SMALL = ("trainer.n_gpus_per_node=1", "trainer.device=cpu", "data.n_samples=2", "data.batch_size=4")


def test_generation_and_then_evaluation(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    stage.answers = ["#### 4", "#### 4", "I do not know"]
    real = ("data.path=~/data/gsm8k/test.parquet", "model.path=MODEL", "data.output_path=responses.parquet")
    recipe = stage.recipe("generation.yaml")
    assert stage.module("main_generation", "--config", recipe, *real, *SMALL, stage.address_key) == 0
    assert [len(row) for row in pq.read_table("responses.parquet").column("responses").to_pylist()] == [2] * 8
    sampled = stage.requests[0]["sampling_params"]
    assert (sampled["top_k"], sampled["top_p"], sampled["max_new_tokens"]) == (50, 0.7, 512)
    assert stage.module("main_eval", "--config", stage.recipe("evaluation.yaml")) == 0
    assert "openai/gsm8k" in capfd.readouterr().out
    result = json.loads(Path("responses.eval.json").read_text())
    assert (result["sources"]["openai/gsm8k"]["responses"], result["failures"]) == (16, [])


SOURCES = {
    "gsm8k": {"question": "2 and 2?", "answer": "<<2+2=4>>\n#### 4"},
    "math": {"problem": "2 + 2?", "solution": "It is $\\boxed{4}$.", "level": "Level 1", "type": "Algebra"},
    "geo3k": {"problem": "Find x.", "answer": "4"},
}


def data_commands() -> list[str]:
    """`agentrl data …` as commands.txt has them."""
    return re.findall(r"`agentrl (data [^`]*)`", (FIELD / "commands.txt").read_text())


@pytest.mark.parametrize("line", data_commands())
def test_rows_are_made(line: str, stage: Stage, tmp_path: Path) -> None:
    """From a file here: the command takes it from the hub."""
    arguments = stage.shell(line)
    folder = tmp_path / "source"
    folder.mkdir()
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text(json.dumps(SOURCES[arguments[1]]))
    made = CliRunner().invoke(app, [*arguments, "--source", str(folder), "--overwrite", "--local_dir", str(tmp_path)])
    assert made.exit_code == 0, made.output
    (row,) = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert row["reward_model"]["ground_truth"] == "4"
    assert ("tools_kwargs" in str(row) or row.get("agent_name") == "tool_agent") == ("tool" in line)


def test_every_job_is_here() -> None:
    assert len(data_commands()) == 5
