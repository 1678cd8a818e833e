"""`agentrl data math | aime | search | geo3k | apps | messages`: other people's files become rows that a run takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.config.data import DataConfig
from agentrl.config.sft import SFTDataConfig
from agentrl.data.dataset import RLHFDataset
from agentrl.errors import DataError
from agentrl.pictures import Picture, pictures_in, read_picture, shown_text
from agentrl.rewards import default_compute_score
from agentrl.rewards.dispatcher import truth_problem
from agentrl.trainer.sft_rows import DemonstrationReader
from agentrl.types import Sample

runner = CliRunner()

MATH = [
    {
        "problem": f"What is {n}/2?",
        "level": "Level 1",
        "type": "Algebra",
        "solution": rf"So \boxed{{\frac{{{n}}}{{2}}}}.",
    }
    for n in (1, 3, 5)
]
AIME = [{"ID": "2024-I-1", "Problem": "Find it.", "Solution": "...", "Answer": 204}]
SQUARE = read_picture(np.zeros((16, 16, 3), np.uint8)).data
GEO = [{"images": [{"bytes": SQUARE, "path": None}], "problem": "<image>Find x.", "answer": r"2 \sqrt { 3 }"}]
SEARCH = [
    {"id": "a", "question": "who wrote Emma", "golden_answers": ["Jane Austen", "Austen"]},
    {"id": "b", "question": "where is Oslo?", "golden_answers": ["Norway"]},
]
APPS = [
    {
        "problem_id": 1,
        "question": "Double the number.",
        "solutions": json.dumps(["print(2 * int(input()))"]),
        "input_output": json.dumps({"inputs": ["2\n"], "outputs": ["4\n"]}),
        "difficulty": "introductory",
        "starter_code": "",
    },
    {"problem_id": 2, "question": "No tests.", "solutions": "", "input_output": "", "starter_code": ""},
    {
        "problem_id": 3,
        "question": "Double it.",
        "solutions": "",
        "input_output": json.dumps({"fn_name": "double", "inputs": [[2]], "outputs": [4]}),
        "starter_code": "def double(n):",
    },
]
CHATS = [
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    {"system": "s", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    {"prompt": "a", "response": "b"},
    {"instruction": "a", "input": "c", "output": "b"},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        lines = [json.dumps(row, default=str) for row in rows]
        path.write_text("\n".join(lines) if path.suffix == ".jsonl" else f"[{','.join(lines)}]")
    return path


def run(*arguments: object) -> Any:
    return runner.invoke(app, ["data", *map(str, arguments)])


def samples(file: Path, *, sees_pictures: bool = False) -> list[Sample]:
    rows = RLHFDataset(str(file), DataConfig(), sees_pictures=sees_pictures)
    return [rows[place] for place in range(len(rows))]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".json"])
@pytest.mark.parametrize("variant", ["plain", "tool"])
def test_math(tmp_path: Path, suffix: str, variant: str) -> None:
    write(tmp_path / "in" / f"train{suffix}", MATH[:2])
    write(tmp_path / "in" / f"test{suffix}", MATH[2:])
    out = tmp_path / "out"
    result = run("math", "--source", tmp_path / "in", "--local_dir", out, "--variant", variant)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        f"train: 2 rows in {out}/train.parquet",
        f"test: 1 rows in {out}/test.parquet",
    ]
    train = samples(out / "train.parquet")
    assert [sample.ground_truth for sample in train] == [r"\frac{1}{2}", r"\frac{3}{2}"]
    assert {sample.agent_name for sample in train} == {"tool_agent" if variant == "tool" else "single_turn_agent"}
    assert train[0].extra_info["level"] == "Level 1"
    assert [truth_problem(sample) for sample in train] == [None, None]
    assert default_compute_score(train[0].data_source, r"\boxed{0.5}", train[0].ground_truth) == 1.0


def test_aime_and_geometry(tmp_path: Path) -> None:
    assert run("aime", "--source", write(tmp_path / "aime.jsonl", AIME), "--out", tmp_path / "a").exit_code == 0
    (aime,) = samples(tmp_path / "a" / "test.parquet")
    assert (aime.data_source, aime.ground_truth) == ("Maxwell-Jia/AIME_2024", "204")
    file = write(tmp_path / "geo.parquet", GEO)
    result = run("geo3k", "--source", file, "--out", tmp_path / "g", "--variant", "tool")
    assert result.exit_code == 0, result.stderr
    (geometry,) = samples(tmp_path / "g" / "train.parquet", sees_pictures=True)
    assert pictures_in(geometry.prompt) == [Picture(SQUARE)]
    assert shown_text(geometry.prompt[-1]["content"]) == "<image>Find x."
    assert default_compute_score(geometry.data_source, r"\boxed{2\sqrt{3}}", geometry.ground_truth) == 0.9
    with pytest.raises(DataError, match="the model reads text only"):
        samples(tmp_path / "g" / "train.parquet")


def test_geometry_with_a_damaged_picture_names_its_row(tmp_path: Path) -> None:
    file = write(tmp_path / "geo.parquet", [*GEO, {**GEO[0], "images": [{"bytes": b"no", "path": None}]}])
    result = run("geo3k", "--source", file, "--out", tmp_path / "g")
    assert result.exit_code == 2
    assert "geo.parquet, row 1, column 'images': got a cell that is no picture" in result.stderr


def test_made_up_pictures(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        assert run("pictures", "--out", tmp_path / folder, "--train", 6, "--test", 2, "--seed", 3).exit_code == 0
    rows = samples(tmp_path / "a" / "train.parquet", sees_pictures=True)
    assert [pictures_in(each.prompt) for each in rows] == [
        pictures_in(each.prompt) for each in samples(tmp_path / "b" / "train.parquet", sees_pictures=True)
    ]
    for sample in rows:
        (shown,) = pictures_in(sample.prompt)
        pixels = np.asarray(shown.open())
        assert pixels.shape == (56, 56, 3)
        if "dots" in sample.extra_info["question"]:
            # Fields of 18 x 18 pixels; one with a dot is black in its middle.
            middles = pixels[9:54:18, 9:54:18].sum(-1) == 0
            assert str(int(middles.sum())) == sample.ground_truth
        assert default_compute_score(sample.data_source, sample.ground_truth, sample.ground_truth) == 1.0


def test_search(tmp_path: Path) -> None:
    source = write(tmp_path / "nq_train.jsonl", SEARCH)
    corpus = write(tmp_path / "corpus.jsonl", [{"id": "1", "contents": '"Emma"\nA novel by Jane Austen.'}])
    out = tmp_path / "out"
    result = run("search", "--source", source, "--out", out, "--corpus", corpus, "--data-source", "hotpotqa")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1] == (
        f"index the corpus with: agentrl data index {corpus} --out {out}/index --kind bm25"
    )
    first, second = samples(out / "train.parquet")
    assert (first.data_source, first.agent_name) == ("hotpotqa", "search_r1_agent")
    assert first.ground_truth == {"target": ["Jane Austen", "Austen"]}
    assert "who wrote Emma?" in first.prompt[0]["content"]
    assert default_compute_score(second.data_source, "<answer>Norway</answer>", second.ground_truth) == 1.0
    tool = tmp_path / "tool"
    assert run("search", "--source", tmp_path / "nq_train.jsonl", "--out", tool, "--variant", "tool").exit_code == 0
    assert {(s.data_source, s.agent_name) for s in samples(tool / "train.parquet")} == {("nq", "tool_agent")}


def test_search_checks_the_corpus_first(tmp_path: Path) -> None:
    source, out = write(tmp_path / "train.jsonl", SEARCH), tmp_path / "out"
    for corpus, words in (
        (tmp_path / "no.jsonl", "No such file"),
        (write(tmp_path / "bad.jsonl", [{"title": "x"}]), "one document per line"),
    ):
        result = run("search", "--source", source, "--out", out, "--corpus", corpus)
        assert (result.exit_code, words in result.stderr, out.exists()) == (2, True, False)


def test_apps(tmp_path: Path) -> None:
    result = run("apps", "--source", write(tmp_path / "apps.jsonl", APPS), "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert "left out: 1 rows without tests (row 1)" in result.stdout
    plain, called = samples(tmp_path / "train.parquet")
    assert json.loads(plain.ground_truth) == {"inputs": ["2\n"], "outputs": ["4\n"]}
    assert plain.extra_info["answer"] == "```python\nprint(2 * int(input()))\n```"
    assert "function `double`" in called.prompt[0]["content"]
    assert "def double(n):" in called.prompt[0]["content"]


@pytest.mark.parametrize("chat", CHATS)
def test_messages(tmp_path: Path, chat: dict[str, Any]) -> None:
    source = write(tmp_path / "chats.jsonl", [chat])
    assert run("messages", "--source", source, "--out", tmp_path).exit_code == 0
    (shown,) = DemonstrationReader(str(tmp_path / "train.parquet"), SFTDataConfig()).rows()
    system = [{"role": "system", "content": "s"}] if "system" in chat else []
    asked = "a\n\nc" if "input" in chat else "a"
    assert shown.messages == [*system, {"role": "user", "content": asked}, {"role": "assistant", "content": "b"}]


def test_messages_with_tools(tmp_path: Path) -> None:
    function = {"name": "calc", "description": "Sums.", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": function}]
    call = {"id": "1", "type": "function", "function": {"name": "calc", "arguments": {"a": 1}}}
    talk = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"from": "observation", "value": "2"},
        {"role": "assistant", "content": "b"},
    ]
    source = write(tmp_path / "chats.json", [{"messages": talk, "tools": json.dumps(tools)}, CHATS[0]])
    assert run("messages", "--source", source, "--out", tmp_path).exit_code == 0
    with_tools, without = DemonstrationReader(str(tmp_path / "train.parquet"), SFTDataConfig()).rows()
    assert (with_tools.tools, without.tools) == (tools, None)
    assert [message["role"] for message in with_tools.messages] == ["user", "assistant", "tool", "assistant"]
    assert with_tools.messages[1]["tool_calls"][0]["function"]["name"] == "calc"


@pytest.mark.parametrize(
    ("command", "rows", "words"),
    [
        (
            "math",
            [{"problm": "x", "answer": "1"}],
            "column 'problem': got only the columns problm, answer, wanted problem or question. Did you mean 'problm'?",
        ),
        ("math", [{"problem": "x", "solution": "none"}], "column 'solution': got a solution without a boxed answer"),
        ("math", [{"problem": "x"}], "column 'solution': got only the columns problem"),
        ("aime", [{"Problem": "x"}], "got only the columns Problem"),
        ("geo3k", [{"problem": "", "answer": "1"}], "column 'problem': got '', wanted text"),
        ("search", [{"question": "q"}], "column 'golden_answers': got only the columns question"),
        ("search", [{"question": "q", "golden_answers": [""]}], "wanted an answer, or a list of answers"),
        ("search", [{"question": "q", "golden_answers": ["the"]}], "no row that can be used: 1 that their score could"),
        ("apps", [{"question": "q", "input_output": "{"}], "column 'input_output': got text that is no JSON"),
        ("apps", [{"question": "q", "input_output": '{"inputs": [1], "outputs": []}'}], "as many outputs as inputs"),
        ("apps", [{"question": "q", "input_output": "{}"}], "no row that can be used: 1 without tests"),
        ("messages", [{"text": "x"}], "column 'messages': got only the columns text, wanted messages or conversations"),
        ("messages", [{"conversations": [{"from": "humn", "value": "x"}]}], "Did you mean 'human'"),
        ("messages", [{"messages": [{"role": "user", "content": "x"}]}], "wanted an answer of the assistant"),
        ("messages", [], "no row that can be used"),
    ],
)
def test_what_cannot_be_used_is_named_and_nothing_is_written(
    tmp_path: Path, command: str, rows: list[dict[str, Any]], words: str
) -> None:
    good = {"math": MATH, "geo3k": [{"problem": "x", "answer": "1"}], "search": SEARCH, "apps": APPS, "messages": CHATS}
    source = write(tmp_path / "in" / "train.jsonl", good.get(command, AIME)[:1])
    write(tmp_path / "in" / "test.jsonl", rows)
    out = tmp_path / "out"
    source = tmp_path / "in" / "test.jsonl" if command == "aime" else tmp_path / "in"
    result = run(command, "--source", source, "--out", out)
    assert result.exit_code == 2
    assert words in result.stderr, result.stderr
    assert not out.exists()


def test_an_output_that_exists_is_kept(tmp_path: Path) -> None:
    source = write(tmp_path / "math.jsonl", MATH)
    first = run("math", "--source", source, "--out", tmp_path)
    before = (tmp_path / "train.parquet").read_bytes()
    refused = run("math", "--source", source, "--out", tmp_path, "--variant", "tool")
    assert (first.exit_code, refused.exit_code) == (0, 2)
    assert f"{tmp_path / 'train.parquet'} exists: give --overwrite to replace it, or another --out" in refused.stderr
    assert (tmp_path / "train.parquet").read_bytes() == before
    assert run("math", "--source", source, "--out", tmp_path, "--variant", "tool", "--overwrite").exit_code == 0
    assert (tmp_path / "train.parquet").read_bytes() != before


def test_the_source_is_never_overwritten(tmp_path: Path) -> None:
    source = write(tmp_path / "train.parquet", MATH)
    before = source.read_bytes()
    refused = run("math", "--source", tmp_path, "--out", tmp_path, "--overwrite")
    assert refused.exit_code == 2
    assert f"{source} is a file that this command reads: give another output" in refused.stderr
    assert source.read_bytes() == before


def test_sources_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No such file" in run("math", "--source", tmp_path / "no.parquet", "--out", tmp_path).stderr
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").touch()
    assert "a folder with a.txt" in run("math", "--source", tmp_path / "folder", "--out", tmp_path).stderr
    monkeypatch.setenv("HOME", str(tmp_path))
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")

    def unreachable(*_: Any, **__: Any) -> Any:
        raise ConnectionError("Couldn't reach the Hub\nand more")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    result = run("math")
    assert result.exit_code == 2
    assert "cannot load DigitalLearningGmbH/MATH-lighteval from the hub (ConnectionError: Couldn't" in result.stderr
    assert "and more" not in result.stderr
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_list(MATH))
    assert run("math").exit_code == 0
    assert len(samples(tmp_path / "data" / "math" / "test.parquet")) == 3
