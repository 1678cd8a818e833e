"""The built-in corpus: short texts about everyday science, geography and history, so that a server answers at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.services.common.server_folder import server_folder
from agentrl.services.retrieval.build_options import BuildOptions
from agentrl.services.retrieval.index_build import build_index

SAMPLE_CORPUS = Path(__file__).with_name("sample_corpus.jsonl")


@contextmanager
def sample_index() -> Iterator[Path]:
    """A BM25 index of the sample in a folder that ends with the server."""
    with server_folder("retrieval") as folder:
        index = folder / "index"
        build_index([SAMPLE_CORPUS], index, BuildOptions(workers=1), quiet=True)
        yield index
