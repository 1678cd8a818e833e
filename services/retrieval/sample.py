"""The built-in corpus: short texts about everyday science, geography and history, so that a server answers at once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.services.retrieval.build import BuildOptions, build_index

SAMPLE_CORPUS = Path(__file__).with_name("sample_corpus.jsonl")


@contextmanager
def sample_index() -> Iterator[Path]:
    """A BM25 index of the sample in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="agentrl-sample-") as folder:
        index = Path(folder) / "index"
        build_index([SAMPLE_CORPUS], index, BuildOptions(workers=1), quiet=True)
        yield index
