"""`agentrl data …` as the field types it, from files here in place of the hub."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from stage import FIELD, Stage
from typer.testing import CliRunner

from agentrl.cli import app

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


def test_every_command_is_here() -> None:
    assert len(data_commands()) == 5
