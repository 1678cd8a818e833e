"""BM25: assemble bm25s's index files from shards, and search them memory-mapped."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agentrl.errors import UserInputError
from agentrl.services.retrieval.corpus_shards import Postings, Shard
from agentrl.services.retrieval.text_analysis import Analyzer

FOLDER = "bm25"
_MAX_TERMS = 512
"""Most terms of one query; longer queries are cut, so that no query can occupy the server."""

Hits = list[tuple[int, float]]
"""Documents of one query with their scores, best first."""


class _Collection(NamedTuple):
    """The numbers of the whole corpus that the score of a term needs."""

    numbers: dict[str, int]
    pairs_of_term: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.float64]


def assemble(shards: Sequence[Shard], out: Path, k1: float, b: float, tick: Callable[[], None]) -> None:
    """Write a bm25s index (method `lucene`) of all shards.

    bm25s builds from Python lists of all terms, which Wikipedia does not fit into; this needs memory for one shard.

    Args:
        shards: in order.
        out: folder to make.
        k1: how slowly repeated terms saturate.
        b: how much long documents are held back.
        tick: called after each shard.

    Raises:
        UserInputError: no document has a term.
    """
    out.mkdir()
    whole = _survey(shards)
    documents, frequency = len(whole.lengths), whole.pairs_of_term.astype(np.float64)
    idf = np.log1p((documents - frequency + 0.5) / (frequency + 0.5))
    scale = k1 * (1 - b + b * whole.lengths / max(whole.lengths.mean(), 1e-9))
    indptr = np.concatenate([[0], np.cumsum(whole.pairs_of_term)])
    pairs = int(indptr[-1])
    if not pairs:
        raise UserInputError("the corpus has no word that can be searched for: every document is empty or stop words")
    data = np.lib.format.open_memmap(out / "data.csc.index.npy", mode="w+", dtype=np.float32, shape=(pairs,))
    indices = np.lib.format.open_memmap(out / "indices.csc.index.npy", mode="w+", dtype=np.int32, shape=(pairs,))
    free, base = indptr[:-1].copy(), 0
    for shard in shards:
        found = shard.postings()
        terms = _translate(shard, whole.numbers)
        places = free[terms[found.terms]] + _rank_in_term(found.terms, len(terms))
        length = scale[base + found.documents]
        indices[places] = found.documents + base
        data[places] = idf[terms[found.terms]] * found.counts / (length + found.counts)
        np.add.at(free, terms, np.bincount(found.terms, minlength=len(terms)))
        base += len(shard.load("lengths"))
        tick()
    _write_small_files(out, whole.numbers, indptr, documents, k1, b)


def _survey(shards: Sequence[Shard]) -> _Collection:
    numbers: dict[str, int] = {}
    pairs = np.zeros(0, np.int64)
    lengths = []
    for shard in shards:
        found: Postings = shard.postings()
        terms = _translate(shard, numbers)
        pairs = np.concatenate([pairs, np.zeros(len(numbers) - len(pairs), np.int64)])
        np.add.at(pairs, terms, np.bincount(found.terms, minlength=len(terms)))
        lengths.append(shard.load("lengths").astype(np.float64))
    return _Collection(numbers, pairs, np.concatenate(lengths))


def _translate(shard: Shard, numbers: dict[str, int]) -> npt.NDArray[np.int64]:
    """The number in the whole index of each term of a shard; new terms are numbered."""
    return np.array([numbers.setdefault(name, len(numbers)) for name in shard.vocabulary()], dtype=np.int64)


def _rank_in_term(terms: npt.NDArray[np.int32], vocabulary: int) -> npt.NDArray[np.int64]:
    """0, 1, 2, … over the pairs of each term."""
    starts = np.concatenate([[0], np.cumsum(np.bincount(terms, minlength=vocabulary))])
    ranks: npt.NDArray[np.int64] = np.arange(len(terms)) - starts[terms]
    return ranks


def _write_small_files(
    out: Path, numbers: dict[str, int], indptr: npt.NDArray[np.int64], documents: int, k1: float, b: float
) -> None:
    import bm25s

    np.save(out / "indptr.csc.index.npy", indptr)
    # bm25s wants a number for the empty term.
    vocabulary = json.dumps({**numbers, "": len(numbers)}, ensure_ascii=False)
    (out / "vocab.index.json").write_text(vocabulary, encoding="utf-8")
    params = {
        "k1": k1,
        "b": b,
        "delta": 0.5,
        "method": "lucene",
        "idf_method": "lucene",
        "dtype": "float32",
        "int_dtype": "int32",
        "num_docs": documents,
        "version": bm25s.__version__,
        "backend": "numpy",
    }
    (out / "params.index.json").write_text(json.dumps(params, indent=2))


class Bm25Search:
    """Searches an index folder of bm25s.

    Args:
        folder: made by `assemble`.
        settings: of the index; `stemmer` is used.

    Raises:
        UserInputError: bm25s is absent or refuses the folder.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        import bm25s

        from agentrl.services.retrieval.bm25_kernel import search

        self._kernel = search
        try:
            index = bm25s.BM25.load(folder, mmap=True)
        except (OSError, ValueError, KeyError) as error:
            raise UserInputError(f"{folder}: bm25s cannot read it ({error}); build the index again") from error
        arrays = index.scores
        self._data, self._indices = np.asarray(arrays["data"]), np.asarray(arrays["indices"])
        self._indptr = np.asarray(arrays["indptr"])
        self._documents = int(arrays["num_docs"])
        self._numbers: dict[str, int] = index.vocab_dict
        self._analyze = Analyzer(settings["stemmer"])
        self._room = threading.local()
        self.search(["warm up the compiled loop"], 1)

    def search(self, queries: Sequence[str], k: int) -> list[Hits]:
        """The k best documents of each query, fewer where fewer share a term with it."""
        known = [
            [self._numbers[term] for term in self._analyze(query)[:_MAX_TERMS] if term in self._numbers]
            for query in queries
        ]
        pointers = np.concatenate([[0], np.cumsum([len(terms) for terms in known])]).astype(np.int64)
        flat = np.fromiter((term for terms in known for term in terms), np.int64, int(pointers[-1]))
        shape = (len(queries), min(k, self._documents))
        documents, scores = np.full(shape, -1, np.int64), np.zeros(shape, np.float32)
        self._kernel(self._data, self._indices, self._indptr, flat, pointers, self._sums(), documents, scores)
        return [
            [(number, score) for number, score in zip(*row, strict=True) if number >= 0]
            for row in zip(documents.tolist(), scores.tolist(), strict=True)
        ]

    def _sums(self) -> npt.NDArray[np.float32]:
        if not hasattr(self._room, "sums"):
            self._room.sums = np.zeros(self._documents, np.float32)
        sums: npt.NDArray[np.float32] = self._room.sums
        return sums
