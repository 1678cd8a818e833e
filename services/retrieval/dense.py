"""Dense search: encode the shards, index the vectors with faiss, search them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from agentrl.errors import UserInputError, suggest
from agentrl.services.retrieval.bm25 import Hits
from agentrl.services.retrieval.corpus_shards import Shard

if TYPE_CHECKING:
    from agentrl.services.retrieval.build_options import BuildOptions
    from agentrl.services.retrieval.encoder import Encoder, Vectors

FOLDER = "dense"
_FILE, _PROBE = "vectors.faiss", "probe.npy"
_PROBE_TEXT = "The quick brown fox jumps over the lazy dog."
_PROBE_SIMILARITY = 0.99
"""Of the same encoder on another device or version of its libraries; another encoder is far below."""
INDEXES = ("flat", "hnsw")
FLAT_UP_TO = 50_000
"""`auto` searches at most this many vectors exactly; more get a graph."""
_HNSW_LINKS, _HNSW_BUILD, _HNSW_SEARCH = 32, 200, 128


def open_encoder(options: BuildOptions) -> Encoder:
    """The encoder of a build.

    Raises:
        UserInputError: none is given, or it cannot be used.
    """
    from agentrl.services.retrieval.encoder import Encoder, find_preset

    if not options.encoder:
        raise UserInputError(f"--kind {options.kind} needs --encoder MODEL, a folder or hub name of an encoder")
    if options.dense_index not in (*INDEXES, "auto"):
        raise UserInputError(
            f"--dense-index {options.dense_index!r}.{suggest(options.dense_index, [*INDEXES, 'auto'])}"
        )
    preset = find_preset(options.preset, options.encoder)
    return Encoder(options.encoder, preset, options.max_tokens, options.device)


def assemble(
    shards: Sequence[Shard], out: Path, encoder: Encoder, options: BuildOptions, tick: Callable[[int], None]
) -> dict[str, Any]:
    """Encode all documents and write a faiss index.

    Args:
        shards: in order; each keeps its vectors, so that an interrupted build need not encode them again.
        out: folder to make.
        encoder: see `open_encoder`.
        options: of the build.
        tick: called with the number of documents after each batch.

    Returns:
        What the index keeps of its settings.
    """
    import faiss

    out.mkdir()
    _drop_vectors_of_other_encoders(shards, encoder)
    for shard in shards:
        if not shard.vectors.exists():
            _encode_shard(shard, encoder, options.encode_batch, tick)
        else:
            tick(len(np.load(shard.vectors, mmap_mode="r")))
    documents = sum(len(np.load(shard.vectors, mmap_mode="r")) for shard in shards)
    dimension = np.load(shards[0].vectors, mmap_mode="r").shape[1]
    kind = options.dense_index
    if kind == "auto":
        kind = "flat" if documents <= FLAT_UP_TO else "hnsw"
    index = make_faiss(kind, dimension)
    for shard in shards:
        index.add(np.load(shard.vectors))
    faiss.write_index(index, str(out / _FILE))
    np.save(out / _PROBE, encoder.queries([_PROBE_TEXT])[0])
    return {"dense_index": kind, "dimension": dimension, "preset": encoder.settings()}


def _drop_vectors_of_other_encoders(shards: Sequence[Shard], encoder: Encoder) -> None:
    """The weights behind a model's name may be others than those of the build that is resumed."""
    file = shards[0].vectors.with_name(_PROBE)
    probe = encoder.passages([_PROBE_TEXT])[0]
    if file.exists() and is_same_direction(np.load(file), probe):
        return
    for shard in shards:
        shard.vectors.unlink(missing_ok=True)
    _save(file, probe)


def make_faiss(kind: str, dimension: int) -> Any:
    """An empty faiss index by inner product: exact, or a graph."""
    import faiss

    if kind == "flat":
        return faiss.IndexFlatIP(dimension)
    index = faiss.IndexHNSWFlat(dimension, _HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = _HNSW_BUILD
    index.hnsw.efSearch = _HNSW_SEARCH
    return index


def _encode_shard(shard: Shard, encoder: Encoder, size: int, tick: Callable[[int], None]) -> None:
    """Encode long texts with long ones, so that little is padded."""
    texts = list(shard.texts())
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    parts: list[Vectors] = []
    for places in _chunks(order, size):
        parts.append(encoder.passages([texts[place] for place in places]))
        tick(len(places))
    vectors = np.empty((len(texts), parts[0].shape[1] if parts else 0), np.float32)
    if parts:
        vectors[order] = np.concatenate(parts)
    _save(shard.vectors, vectors)


def _save(file: Path, array: Vectors) -> None:
    partial = file.with_suffix(".partial.npy")
    np.save(partial, array)
    os.replace(partial, file)


def _chunks(order: list[int], size: int) -> Iterator[list[int]]:
    places = iter(order)
    while chunk := list(islice(places, size)):
        yield chunk


class DenseSearch:
    """Searches a faiss index with the encoder that made it.

    Args:
        folder: made by `assemble`.
        settings: of the index.
        device: where the encoder runs.

    Raises:
        UserInputError: faiss is absent, the file is broken, or the encoder is not the one that made it.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], device: str) -> None:
        import faiss

        from agentrl.services.retrieval.encoder import Encoder, Preset

        try:
            self._index = faiss.read_index(str(folder / _FILE), faiss.IO_FLAG_MMAP)
        except RuntimeError as error:
            raise UserInputError(f"{folder}: faiss cannot read it ({error}); build the index again") from error
        preset = None if settings["preset"] is None else Preset(**settings["preset"])
        self._encoder = Encoder(settings["encoder"], preset, settings["max_tokens"], device)
        given, wanted = self._encoder.queries([_PROBE_TEXT])[0], np.load(folder / _PROBE)
        if not is_same_direction(given, wanted):
            raise UserInputError(
                f"{folder}: {settings['encoder']} gives other vectors ({len(given)} numbers) than the index was built "
                f"with ({len(wanted)}); it was made by another encoder"
            )
        self._is_graph = settings["dense_index"] == "hnsw"

    def search(self, queries: Sequence[str], k: int) -> list[Hits]:
        """The k nearest documents of each query."""
        vectors = self._encoder.queries(queries)
        scores, numbers = find_nearest(self._index, vectors, k, self._is_graph)
        # faiss says -1 where it found fewer than k, and a broken encoder gives NaN: neither is a document.
        return [
            [(number, score) for number, score in zip(*row, strict=True) if number >= 0 and np.isfinite(score)]
            for row in zip(numbers.tolist(), scores.tolist(), strict=True)
        ]


def is_same_direction(given: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32]) -> bool:
    """Whether two vectors are those of one text and encoder."""
    if given.shape != wanted.shape:
        return False
    return bool(given @ wanted >= _PROBE_SIMILARITY * np.linalg.norm(given) * np.linalg.norm(wanted))


def find_nearest(index: Any, vectors: Vectors, k: int, is_graph: bool) -> tuple[Any, Any]:
    """Scores and numbers of shape (queries, k)."""
    import faiss

    k = min(k, index.ntotal)
    if not is_graph:
        return index.search(vectors, k)  # type: ignore[no-any-return]  # faiss has no types
    params = faiss.SearchParametersHNSW(efSearch=max(_HNSW_SEARCH, k))  # type: ignore[attr-defined]  # made at import
    return index.search(vectors, k, params=params)  # type: ignore[no-any-return]  # faiss has no types
