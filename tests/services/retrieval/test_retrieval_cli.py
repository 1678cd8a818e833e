"""The two commands, through the `agentrl` command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.services.retrieval.index import Index

INDEX = ["data", "index", "absent.jsonl", "--out", "x"]


def run(*arguments: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, list(arguments))
    return answer.exit_code, answer.output


def test_an_index_is_built_and_searched(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": 1, "title": "T", "text": "grey geese"}\n{"id": 2, "contents": "a grey goose"}\n')
    out = tmp_path / "made" / "index"
    code, output = run("data", "index", str(corpus), "--out", str(out), "--k1", "1.2", "--quiet")
    assert code == 0, output
    assert "bm25 index of 2 documents" in output
    index = Index(out)
    assert index.about["settings"] == {"k1": 1.2, "b": 0.4, "stemmer": "english", "tokenizer_version": 1}
    assert len(index.search(["grey"], 5)[0]) == 2
    code, output = run("data", "index", str(corpus), "--out", str(out))
    assert code == 2
    assert "--force" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "retrieval", "--host", "0.0.0.0"], "--insecure"),
        (["serve", "retrieval", "--token", ""], "empty"),
        (["serve", "retrieval", "--index", "/nonexistent"], "agentrl data index"),
        (["serve", "retrieval", "--max-waiting", "5"], "--max-queries"),
        (INDEX, "no such file"),
        ([*INDEX, "--kind", "dense"], "--encoder"),
        ([*INDEX, "--k1", "nan"], "--k1 nan: wanted a number of 0 or more"),
        ([*INDEX, "--k1", "inf"], "--k1 inf: wanted a number of 0 or more"),
        ([*INDEX, "--k1", "-1"], "--k1 -1: wanted a number of 0 or more"),
        ([*INDEX, "--b", "nan"], "--b nan: wanted a number from 0 to 1"),
        ([*INDEX, "--b", "5"], "--b 5: wanted a number from 0 to 1"),
        (["serve", "retrieval", "--cache-mb", "inf"], "got inf, wanted a number of 0 or more"),
        (["serve", "retrieval", "--timeout", "nan"], "got nan, wanted a number of 0.001 or more"),
    ],
)
def test_mistakes_are_exit_code_2_with_a_reason(arguments: list[str], words: str) -> None:
    code, output = run(*arguments)
    assert code == 2, output
    assert words in " ".join(output.split())


def test_starting_needs_no_torch() -> None:
    code = (
        "import sys; from agentrl.services.retrieval import app, cli, index, sample_index; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'faiss', 'ray')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
