"""`agentrl data`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from agentrl.cli import app

runner = CliRunner()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = [
        {"question": f"{n} and {n}?", "answer": f"<<{n}+{n}={2 * n}>> <<{n}*3={3 * n}>>\n#### {2 * n}"}
        for n in range(1, 9)
    ]
    for split, part in (("train", rows[:6]), ("test", rows[6:])):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, part)))
    return tmp_path  # fmt: skip


def rows(path: Path) -> list[dict[str, object]]:
    return pq.read_table(path).to_pylist()


@pytest.mark.parametrize("variant", ["plain", "tool", "interaction"])
def test_gsm8k(source: Path, variant: str) -> None:
    out = source / "out"
    result = runner.invoke(app, ["data", "gsm8k", "--source", str(source), "--out", str(out), "--variant", variant])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        f"train: 6 rows in {out / 'train.parquet'}",
        f"test: 2 rows in {out / 'test.parquet'}",
    ]
    assert len(rows(out / "train.parquet")) == 6


def test_gsm8k_with_a_test_file_of_its_own(source: Path) -> None:
    arguments = [
        "--source",
        str(source / "train.jsonl"),
        "--test-source",
        str(source / "test.jsonl"),
        "--out",
        str(source / "o"),
    ]
    assert runner.invoke(app, ["data", "gsm8k", *arguments]).exit_code == 0
    assert len(rows(source / "o" / "test.parquet")) == 2


def test_gsm8k_without_a_file(tmp_path: Path) -> None:
    result = runner.invoke(app, ["data", "gsm8k", "--source", str(tmp_path / "no.jsonl"), "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert (
        result.stderr.strip()
        == f"error: {tmp_path / 'no.jsonl'}: got No such file or directory, wanted a readable jsonl file"
    )


def test_arithmetic(tmp_path: Path) -> None:
    arguments = ["data", "arithmetic", "--out", str(tmp_path), "--train", "30", "--test", "10", "--seed", "5"]
    assert runner.invoke(app, arguments).exit_code == 0
    first = (tmp_path / "train.parquet").read_bytes()
    assert (len(rows(tmp_path / "train.parquet")), len(rows(tmp_path / "test.parquet"))) == (30, 10)
    again = runner.invoke(app, arguments)
    assert (again.exit_code, "give --overwrite to replace it" in again.stderr) == (2, True)
    assert runner.invoke(app, [*arguments, "--overwrite"]).exit_code == 0
    assert (tmp_path / "train.parquet").read_bytes() == first


def test_arithmetic_in_words(tmp_path: Path) -> None:
    arguments = ["data", "arithmetic", "--words", "--out", str(tmp_path), "--train", "30", "--test", "10"]
    result = runner.invoke(app, [*arguments, "--difficulty", "easy", "--demonstrations", "20"])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        f"train: 30 rows in {tmp_path / 'train.parquet'}",
        f"test: 10 rows in {tmp_path / 'test.parquet'}",
        f"demonstrations: 20 rows in {tmp_path / 'demonstrations.parquet'}",
    ]
    again = runner.invoke(app, arguments)
    assert (again.exit_code, "give --overwrite to replace it" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--difficulty", "easy"], "--difficulty: is only for --words"),
        (["--demonstrations", "5"], "--demonstrations: is only for --words"),
        (["--call-share", "0.5"], "--call-share: is only for --words"),
        (["--words", "--from-gsm8k", "x.jsonl"], "--from-gsm8k: is not for --words, whose questions are made up"),
        (
            ["--words", "--train", "3", "--demonstrations", "5"],
            "got 5 demonstrations, wanted at most 3: they answer the training rows",
        ),
        (["--words", "--difficulty", "easy"], "ask for fewer rows, or for another --difficulty"),
    ],
)
def test_arithmetic_options_that_do_not_fit(tmp_path: Path, options: list[str], says: str) -> None:
    result = runner.invoke(app, ["data", "arithmetic", "--out", str(tmp_path), *options])
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert says in " ".join(result.stderr.replace("│", " ").split())


def test_arithmetic_from_gsm8k(source: Path) -> None:
    base = ["data", "arithmetic", "--out", str(source / "out"), "--from-gsm8k", str(source / "train.jsonl")]
    assert runner.invoke(app, [*base, "--train", "8", "--test", "3"]).exit_code == 0
    expressions = {
        row["extra_info"]["question"]
        for split in ("train", "test")
        for row in rows(source / "out" / f"{split}.parquet")
    }  # type: ignore[index]
    assert len(expressions) == 11
    assert expressions <= {f"{n}+{n}" for n in range(1, 7)} | {f"{n}*3" for n in range(1, 7)}
    too_many = runner.invoke(app, [*base, "--train", "12", "--test", "3", "--overwrite"])
    assert (too_many.exit_code, "only 12 distinct" in too_many.stderr) == (2, True)


def test_show_prints_rows_routes_and_lengths(source: Path, tiny_model_dir: Path) -> None:
    runner.invoke(app, ["data", "gsm8k", "--source", str(source), "--out", str(source), "--variant", "tool"])
    file = str(source / "train.parquet")
    result = runner.invoke(app, ["data", "show", file, "--rows", "2", "--tokenizer", str(tiny_model_dir)])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("'role': 'user'") == 2
    for text in ("6 rows in", "tool_agent", "calc_gsm8k_reward", "characters", "tokens", "p50"):
        assert text in result.stdout
    assert "'role'" not in runner.invoke(app, ["data", "show", file, "--rows", "0"]).stdout


def test_show_finds_a_bad_row(tmp_path: Path) -> None:
    import pyarrow as pa

    good = [{"role": "user", "content": "x"}]
    table = pa.table({"prompt": [good, good, []], "data_source": ["a", "a", "a"]})
    pq.write_table(table, tmp_path / "rows.parquet")
    result = runner.invoke(app, ["data", "show", str(tmp_path / "rows.parquet"), "--rows", "1"])
    assert result.exit_code == 2
    assert "row 2, column 'prompt'" in result.stderr


def test_show_of_a_missing_file_and_tokenizer(source: Path) -> None:
    assert "no such file" in runner.invoke(app, ["data", "show", "nowhere.parquet"]).stderr
    runner.invoke(app, ["data", "gsm8k", "--source", str(source), "--out", str(source)])
    result = runner.invoke(app, ["data", "show", str(source / "test.parquet"), "--tokenizer", str(source / "no")])
    assert result.exit_code == 2
    assert "no" in result.stderr
