"""Terms, scores and the ranking, against bm25s itself."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import bm25s
import numpy as np
import pytest

from agentrl.errors import UserInputError
from agentrl.services.retrieval.index import Index
from agentrl.services.retrieval.text_analysis import Analyzer, TermNumbers

Build = Callable[..., Path]


def ids(found: list[tuple[bytes, float]]) -> list[str]:
    return [json.loads(document)["id"] for document, _ in found]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The running dogs of Henry V.", ["run", "dog", "henri", "v"]),
        ("Vitamin C, C++ & 3.5 %", ["vitamin", "c", "c", "3", "5"]),
        ("東京 Tokyo", ["東", "京", "tokyo"]),
        ("ÜBER naïve", ["über", "naïv"]),
        ("to be or not to be", ["be", "be"][:0]),
        ("", []),
        ("\x00 \ud800", []),
    ],
)
def test_terms(text: str, terms: list[str]) -> None:
    assert Analyzer("english")(text) == terms
    numbers = TermNumbers("english")
    found = [number for number in numbers.numbers(text) if number >= 0]
    assert [numbers.names()[number] for number in found] == terms


def test_an_unknown_stemmer_is_named() -> None:
    with pytest.raises(UserInputError, match="Did you mean 'english'"):
        Analyzer("englisch")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    source = random.Random(5)
    words = [f"w{number}" for number in range(60)]
    weights = [1 / (number + 1) for number in range(60)]
    texts = [" ".join(source.choices(words, weights, k=source.randint(0, 30))) for _ in range(157)]
    return [{"id": str(number), "contents": text} for number, text in enumerate(texts)]


@pytest.mark.parametrize("block_rows", [10, 157, 1000])
def test_the_index_is_the_one_that_bm25s_builds(build: Build, rows: list[dict[str, object]], block_rows: int) -> None:
    folder = build(rows, block_rows=block_rows, k1=1.2, b=0.6)
    terms = [Analyzer("english")(str(row["contents"])) for row in rows]
    wanted = bm25s.BM25(k1=1.2, b=0.6, method="lucene")
    wanted.index(terms, show_progress=False)
    ours = bm25s.BM25.load(folder / "bm25", mmap=True)
    for query in (["w0"], ["w3", "w50", "w3"], ["w59", "w58", "w1", "w0"]):
        assert np.allclose(ours.get_scores(query), wanted.get_scores(query), atol=1e-5)
    index = Index(folder)
    for query in ("w7 w20", "w59 w40 w2 w2", "w0"):
        tokens = [query.split()]
        _, scores = wanted.retrieve(tokens, k=10, show_progress=False)
        assert np.allclose([score for _, score in index.search([query], 10)[0]], scores[0], atol=1e-5)


def test_only_documents_with_a_term_of_the_query(build: Build) -> None:
    rows = [{"id": n, "contents": text} for n, text in enumerate(("red apple", "green apple", "sea", "stone", "sand"))]
    index = Index(build(rows))
    found = index.search(["apple", "unknown", "", "the", "sea apple stone red"], 4)
    assert [ids(hits) for hits in found] == [["0", "1"], [], [], [], ["0", "2", "3", "1"]]
    assert all(score > 0 for hits in found for _, score in hits)
    assert len(index.search(["apple"], 100)[0]) == 2


def test_equals_are_in_the_order_of_the_corpus(build: Build) -> None:
    index = Index(build([{"id": n, "contents": "same words"} for n in range(50)]))
    for k in (1, 3, 50):
        assert ids(index.search(["words"], k)[0]) == [str(n) for n in range(k)]


def test_a_batch_gives_what_single_queries_give(sample_folder: Path) -> None:
    index = Index(sample_folder)
    queries = ["capital of France", "who walked on the Moon", "zzz", "largest animal", ""] * 3
    assert index.search(queries, 5) == [index.search([query], 5)[0] for query in queries]


def test_a_corpus_without_words_is_an_error(build: Build) -> None:
    with pytest.raises(UserInputError, match="no word"):
        build([{"id": 1, "contents": "the ... and"}])
