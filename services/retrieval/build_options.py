"""The options of an index build."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from agentrl.errors import UserInputError
from agentrl.services.retrieval.corpus import BLOCK_ROWS
from agentrl.services.retrieval.text_analysis import TOKENIZER_VERSION


@dataclass(frozen=True)
class BuildOptions:
    """How an index is made. All but `workers` become part of it."""

    kind: str = "bm25"
    k1: float = 0.9
    b: float = 0.4
    stemmer: str = "english"
    encoder: str | None = None
    """Model folder or hub name; needed by dense and hybrid."""
    preset: str = "auto"
    dense_index: str = "auto"
    max_tokens: int = 256
    encode_batch: int = 64
    device: str = "auto"
    workers: int = 0
    """Processes that read the corpus; 0: one per core."""
    block_rows: int = BLOCK_ROWS

    def __post_init__(self) -> None:
        """Refuse settings whose scores would not rank documents."""
        if not 0 <= self.k1 < math.inf:
            raise UserInputError(f"--k1 {self.k1:g}: wanted a number of 0 or more")
        if not 0 <= self.b <= 1:
            raise UserInputError(f"--b {self.b:g}: wanted a number from 0 to 1")

    def settings(self) -> dict[str, Any]:
        """What decides the content of the index."""
        without = {"workers", "kind", "device", "encode_batch", "block_rows"}
        sparse = {"k1", "b", "stemmer"} if self.kind == "dense" else set()
        vectors = {"encoder", "preset", "dense_index", "max_tokens"} if self.kind == "bm25" else set()
        kept = {name: value for name, value in asdict(self).items() if name not in without | sparse | vectors}
        return {**kept, "tokenizer_version": TOKENIZER_VERSION}
