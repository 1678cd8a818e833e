"""One block of the corpus as files of a build in progress: documents, terms and counts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from agentrl.services.retrieval.corpus import CorpusBlock, parse_row
from agentrl.services.retrieval.text_analysis import TermNumbers

Ints = npt.NDArray[np.int32]


class Postings(NamedTuple):
    """Which terms stand how often in which documents, sorted by term, then by document."""

    terms: Ints
    documents: Ints
    counts: Ints


class Shard:
    """The files of one block.

    Args:
        folder: where they are.
        number: of the block.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._base = folder / f"{number:06d}"

    @property
    def documents(self) -> Path:
        """JSON lines."""
        return self._base.with_suffix(".jsonl")

    @property
    def vectors(self) -> Path:
        """Embeddings; only of a dense index."""
        return self._base.with_suffix(".vectors.npy")

    def is_done(self) -> bool:
        """Whether the block needs no more work; this file is written last."""
        return self._base.with_suffix(".npz").exists()

    def load(self, name: str) -> npt.NDArray[np.generic]:
        """One array: `ends`, `id_hashes`, `lengths`, `terms`, `documents` or `counts`."""
        with np.load(self._base.with_suffix(".npz")) as arrays:
            found: npt.NDArray[np.generic] = arrays[name]
            return found

    def postings(self) -> Postings:
        """See `Postings`; documents are numbered from 0 in this block."""
        with np.load(self._base.with_suffix(".npz")) as arrays:
            return Postings(arrays["terms"], arrays["documents"], arrays["counts"])

    def vocabulary(self) -> list[str]:
        """The block's own terms, by number."""
        names: list[str] = json.loads(self._base.with_suffix(".terms.json").read_text(encoding="utf-8"))
        return names

    def texts(self) -> Iterator[str]:
        """The contents of the documents."""
        with self.documents.open("rb") as lines:
            for line in lines:
                yield orjson.loads(line)["contents"]

    def save(self, lines: list[bytes], vocabulary: list[str], arrays: dict[str, npt.NDArray[np.generic]]) -> None:
        """Write all files; an interrupted one is not done."""
        with self.documents.open("wb") as file:
            file.writelines(lines)
        self._base.with_suffix(".terms.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        partial = self._base.with_suffix(".partial.npz")
        np.savez(partial, **arrays)  # type: ignore[arg-type]  # its stub takes keywords for allow_pickle
        os.replace(partial, self._base.with_suffix(".npz"))


def make_shard(block: CorpusBlock, folder: Path, stemmer: str | None) -> None:
    """Write the files of a block.

    Args:
        block: rows.
        folder: of the build.
        stemmer: see `TermNumbers`; None: no terms are wanted.

    Raises:
        DataError: a row cannot be used.
    """
    documents = [
        document
        for number, row in enumerate(block.rows, start=block.first_row)
        if (document := parse_row(row, block.file, number)) is not None
    ]
    lines = [document.json + b"\n" for document in documents]
    terms = TermNumbers(stemmer or "none")
    numbers = [terms.numbers(document.contents) if stemmer else [] for document in documents]
    postings, lengths = _count(numbers, max(len(terms.names()), 1))
    Shard(folder, block.number).save(
        lines,
        terms.names(),
        {
            "ends": np.cumsum([len(line) for line in lines], dtype=np.int64),
            "id_hashes": np.array([hash_id(document.id) for document in documents], dtype=np.uint64),
            "lengths": lengths,
            **postings._asdict(),
        },
    )


def hash_id(identity: str) -> int:
    """64 bits that tell ids apart."""
    return int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "little")


def _count(numbers: list[list[int]], vocabulary: int) -> tuple[Postings, Ints]:
    """Postings, and the number of terms of each document."""
    documents = np.repeat(np.arange(len(numbers)), [len(terms) for terms in numbers])
    terms = np.fromiter((term for document in numbers for term in document), np.int64, len(documents))
    documents, terms = documents[terms >= 0], terms[terms >= 0]
    lengths = np.bincount(documents, minlength=len(numbers)).astype(np.int32)
    keys, counts = np.unique(terms * max(len(numbers), 1) + documents, return_counts=True)
    found = np.divmod(keys, max(len(numbers), 1))
    return Postings(found[0].astype(np.int32), found[1].astype(np.int32), counts.astype(np.int32)), lengths
