"""Corpus files of every format, and what is said about rows that cannot be used."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.errors import DataError, UserInputError
from agentrl.services.retrieval.corpus import Corpus, CorpusDocument, parse_row

ROWS = [
    {"id": "a", "title": "Ärger", "text": "one\ntwo"},
    {"id": 7, "contents": '"T"\nbody', "url": "u", "missing": None},
    {"id": "c", "title": "", "text": ""},
]


def documents(corpus: Corpus) -> list[CorpusDocument]:
    found = []
    for block in corpus.blocks():
        rows = (parse_row(row, block.file, n) for n, row in enumerate(block.rows, block.first_row))
        found += [row for row in rows if row is not None]
    return found


def write_all(folder: Path, rows: list[dict[str, object]]) -> list[Path]:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "c.jsonl").write_text(lines, encoding="utf-8")
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    names = sorted({name for row in rows for name in row})
    table = pa.table({name: [None if row.get(name) is None else str(row[name]) for row in rows] for name in names})
    pq.write_table(table, folder / "c.parquet")
    return [folder / "c.jsonl", folder / "c.jsonl.gz", folder / "c.parquet"]


@pytest.mark.parametrize("block_rows", [1, 2, 100])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_every_format_gives_the_same_documents(tmp_path: Path, place: int, block_rows: int) -> None:
    corpus = Corpus([write_all(tmp_path, ROWS)[place]], block_rows)
    found = documents(corpus)
    assert [orjson.loads(document.json) for document in found] == [
        {"id": "a", "contents": '"Ärger"\none\ntwo', "title": "Ärger"},
        {"id": "7", "contents": '"T"\nbody', "url": "u"},
        {"id": "c", "contents": '""\n', "title": ""},
    ]
    assert found[0].contents == '"Ärger"\none\ntwo'
    assert len(corpus.sha256()) == 64


def test_several_files_are_one_corpus(tmp_path: Path) -> None:
    corpus = Corpus(write_all(tmp_path, ROWS), 2)
    blocks = list(corpus.blocks())
    assert [block.number for block in blocks] == list(range(6))
    assert [block.first_row for block in blocks] == [1, 3] * 3
    assert blocks[-1].bytes_read == corpus.total_bytes


def test_blank_lines_count_as_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('\n{"id": 1, "contents": "x"}\n  \nnot json\n')
    with pytest.raises(DataError, match=r"c\.jsonl, row 4: got a line that is not JSON"):
        documents(Corpus([path], 2))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"contents": "x"}, "column 'id'"),
        ({"id": True, "contents": "x"}, "column 'id'"),
        ({"id": "1", "contents": 3}, "column 'contents': got int"),
        ({"id": "1", "title": "x"}, "wanted `id, contents` or `id, title, text`"),
        ({"id": "1", "text": "x"}, "a row with text and no contents"),
        ({"id": "1", "txt": "x"}, "got a row with txt"),
        ([1], "got list"),
    ],
)
def test_rows_that_cannot_be_used(row: object, words: str) -> None:
    with pytest.raises(DataError) as problem:
        parse_row(orjson.dumps(row), "c.jsonl", 5)
    assert words in str(problem.value)
    assert "row 5" in str(problem.value)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="no such file"):
        Corpus([tmp_path / "absent.jsonl"])
    (tmp_path / "c.csv").write_text("id,contents")
    with pytest.raises(UserInputError, match="unknown format"):
        Corpus([tmp_path / "c.csv"])
    whole = gzip.compress(b'{"id": 1, "contents": "x"}\n' * 1000)
    broken = whole[:10] + b"\xff" * 20 + whole[30:]
    for name, content in (
        *(("cut.jsonl.gz", whole[:-20]), ("broken.jsonl.gz", broken)),
        *(("not.jsonl.gz", b"plain"), ("not.parquet", b"plain")),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name):
            documents(Corpus([tmp_path / name]))
    pq.write_table(pa.table({"id": ["1"], "body": ["x"]}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match="the columns id, body"):
        documents(Corpus([tmp_path / "c.parquet"]))
