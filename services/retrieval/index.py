"""Open an index folder of any kind, checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from agentrl.errors import UserInputError
from agentrl.services.retrieval import bm25, dense
from agentrl.services.retrieval.bm25 import Bm25Search, Hits
from agentrl.services.retrieval.document_store import DocumentStore
from agentrl.services.retrieval.index_manifest import read_manifest
from agentrl.services.retrieval.text_analysis import TOKENIZER_VERSION


class DocumentSearch(Protocol):
    """Finds documents for queries; may be called from several threads."""

    def search(self, queries: Sequence[str], k: int) -> list[Hits]:
        """The k best documents of each query, or fewer."""


class Index:
    """An open index.

    Args:
        folder: made by `build_index`.
        hash_files: compare the hash of every file, not only its size.
        device: where an encoder runs: cpu, cuda, or auto.

    Raises:
        UserInputError: it cannot be used.
    """

    def __init__(self, folder: Path, hash_files: bool = True, device: str = "auto") -> None:
        manifest = read_manifest(folder, hash_files)
        settings: dict[str, Any] = manifest["settings"]
        if settings["tokenizer_version"] != TOKENIZER_VERSION:
            raise UserInputError(
                f"{folder}: its terms were made by version {settings['tokenizer_version']} of the tokenizer, "
                f"this is version {TOKENIZER_VERSION}; build it again"
            )
        self.kind: str = manifest["kind"]
        self.documents = DocumentStore(folder)
        self.about = {
            "kind": self.kind,
            "documents": len(self.documents),
            "sha256": manifest["sha256"],
            "settings": settings,
            "versions": manifest["versions"],
        }
        self._search: DocumentSearch = _open(folder, self.kind, settings, device)
        self.parallel = self.kind == "bm25"
        """Whether two threads at once are faster than one; an encoder uses all cores by itself."""

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[bytes, float]]]:
        """Documents as JSON with their scores, best first."""
        found = self._search.search(queries, k)
        return [[(self.documents[number], score) for number, score in hits] for hits in found]


def _open(folder: Path, kind: str, settings: dict[str, Any], device: str) -> DocumentSearch:
    if kind == "bm25":
        return Bm25Search(folder / bm25.FOLDER, settings)
    vectors = dense.DenseSearch(folder / dense.FOLDER, settings, device)
    if kind == "dense":
        return vectors
    from agentrl.services.retrieval.rank_fusion import Hybrid

    return Hybrid([Bm25Search(folder / bm25.FOLDER, settings), vectors])
