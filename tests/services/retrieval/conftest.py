"""Small corpora and indexes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentrl.services.retrieval.build_options import BuildOptions
from agentrl.services.retrieval.index_build import build_index
from agentrl.services.retrieval.sample_index import SAMPLE_CORPUS, sample_index

Row = dict[str, object]
WriteCorpus = Callable[[list[Row]], Path]


@pytest.fixture(scope="session")
def sample_rows() -> list[Row]:
    return [json.loads(line) for line in SAMPLE_CORPUS.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="session")
def sample_folder() -> Iterator[Path]:
    with sample_index() as folder:
        yield folder


@pytest.fixture
def write_corpus(tmp_path: Path) -> WriteCorpus:
    def write(rows: list[Row], name: str = "corpus.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


@pytest.fixture
def build(tmp_path: Path, write_corpus: WriteCorpus) -> Callable[..., Path]:
    """Build an index of rows in one process; `build(rows, name="a", force=True, stemmer="none")`."""

    def make(rows: list[Row], name: str = "index", force: bool = False, **options: object) -> Path:
        out = tmp_path / name
        build_index([write_corpus(rows)], out, BuildOptions(**{"workers": 1, **options}), force, quiet=True)  # type: ignore[arg-type]
        return out

    return make
