"""Reads the answers of search services: documents under the usual names of retrievers, indexes and search APIs.

::

    {"document": {"contents": "..."}, "score": 0.5}                 Search-R1, agentrl
    {"page_content": "...", "metadata": {"title": "..."}}           LangChain; also as a pair with its score
    {"node": {"text": "...", "metadata": {...}}, "score": 0.5}      LlamaIndex
    {"_source": {"title": "...", "text": "..."}, "_score": 2.5}     Elasticsearch, OpenSearch
    {"properties": {...}}, {"payload": {...}}, {"entity": {...}}    Weaviate, Qdrant, Milvus
    {"title": "...", "snippet": "..."}, {"content": "..."}          web searches, Haystack
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

RESULTS = (
    "result",
    "results",
    "responses",
    "documents",
    "docs",
    "hits",
    "matches",
    "passages",
    "data",
    "items",
    "value",
)
"""Where an answer holds its results."""
TEXTS = (
    *("contents", "page_content", "content", "text", "body", "passage", "passage_text", "document", "document_text"),
    *("doc", "chunk", "chunk_text", "chunk_content", "content_with_weight", "paragraph", "raw_text", "raw_content"),
    *("snippet", "sentence", "abstract", "summary", "description"),
)
"""Where a document holds its text. Case, `_` and `-` do not matter: `pageContent` is `page_content`."""
_TITLES = (
    *("title", "page_title", "wikipedia_title", "wiki_title", "doc_title", "document_title", "document_name"),
    *("heading", "headline", "file_name", "name"),
)
_SCORES = ("score", "relevance_score", "similarity", "relevance", "search_score", "rerank_score")
_IDS = ("id", "doc_id", "document_id", "docno", "uuid", "pid", "passage_id", "chunk_id")
_WRAPPERS = (
    *("document", "doc", "node", "source", "properties", "payload", "entity", "fields", "kwargs", "passage", "chunk"),
    *("object", "segment", "record", "item", "attributes"),
)
"""Mappings around the document's own."""
_BESIDE = ("metadata", "meta", "payload", "extra_info", "additional")
"""Mappings beside the text, which may hold the title, and with some indexes the text too."""
_MOST_WRAPPERS = 4

Layer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """What templates can show of a document."""

    title: str
    body: str
    contents: str
    """Title and body, or the text as it came."""
    score: str = ""
    id: Any = ""


def results_of(answer: Any, queries: int) -> list[list[Any]] | None:
    """The hits of each query; None if the answer does not hold one list per query (or the hits of a single one)."""
    if isinstance(answer, dict):
        for key in RESULTS:
            if key in answer:
                found = _per_query(answer[key], queries, may_be_empty=key != "result")
                if found is not None:
                    return found
        return None
    return _per_query(answer, queries, may_be_empty=False)


def _per_query(value: Any, queries: int, *, may_be_empty: bool) -> list[list[Any]] | None:
    if isinstance(value, dict):  # Elasticsearch: {"hits": {"total": ..., "hits": [...]}}
        return results_of(value, queries)
    if not isinstance(value, list):
        return None
    if len(value) == queries and all(isinstance(hits, list) for hits in value):
        return value
    if len(value) == queries and all(isinstance(part, dict) and read_document(part) is None for part in value):
        parts = [results_of(part, 1) for part in value]
        if all(part is not None for part in parts):
            return [hits for part in parts if part is not None for hits in part]
    is_flat = queries == 1 and all(isinstance(hit, dict | str) for hit in value)
    return [value] if is_flat and (value or may_be_empty) else None


def read_document(hit: Any) -> ShownDocument | None:
    """A hit's document; None if its shape is unknown."""
    score = None
    if isinstance(hit, list) and len(hit) == 2 and isinstance(hit[1], int | float):  # LangChain: [document, score]
        hit, score = hit
    if isinstance(hit, str | int | float):
        return _with(_of_text(str(hit)), score, "")
    if not isinstance(hit, dict):
        return None
    layers, beside = _layers(hit)
    document = _read([*layers[::-1], *beside])
    if document is None:
        return None
    return _with(document, _first([*layers, *beside], _SCORES) if score is None else score, _first(layers, _IDS))


def _with(document: ShownDocument, score: Any, found_id: Any) -> ShownDocument:
    shown = f"{score:.4g}" if isinstance(score, int | float) else "" if score is None else str(score)
    return replace(document, score=shown, id="" if found_id is None else found_id)


def _layers(hit: Layer) -> tuple[list[Layer], list[Layer]]:
    """The hit and the mappings that it wraps, the innermost last; and the mappings beside the text."""
    layers, beside = [_plain(hit)], []
    for _ in range(_MOST_WRAPPERS):
        last = layers[-1]
        beside += [_plain(last[key]) for key in _names(_BESIDE) if isinstance(last.get(key), dict)]
        inner = next((last[key] for key in _names(_WRAPPERS) if isinstance(last.get(key), dict)), None)
        if inner is None:
            break
        layers.append(_plain(inner))
    return layers, beside


def _read(layers: list[Layer]) -> ShownDocument | None:
    """The first text and the first title; a title alone is a document too."""
    key, text = next(_texts(layers), ("", None))
    title = _first(layers, _TITLES)
    if text is None and title is None:
        return None
    title, text = str(title or "").strip(), text or ""
    if key == "contents":
        document = _of_text(text)
        if not title or document.title.strip('"') == title.strip('"'):
            return document
    contents = f"{title}\n{text}" if title and key != "contents" else text
    return ShownDocument(title, text.strip(), contents)


def _texts(layers: list[Layer]) -> Iterator[tuple[str, str]]:
    """Texts that are not empty first: `{"text": "", "snippet": "..."}`."""
    found = [(key, text) for layer in layers for key in _names(TEXTS) if (text := _text(layer.get(key))) is not None]
    yield from sorted(found, key=lambda pair: not pair[1].strip())


def _text(value: Any) -> str | None:
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return "\n".join(value)
    return value if isinstance(value, str) else None


def _of_text(text: str) -> ShownDocument:
    """`contents` of Search-R1: the first line is the title."""
    title, _, body = text.partition("\n")
    return ShownDocument(title.strip(), body.strip(), text)


def _first(layers: list[Layer], names: Iterable[str]) -> Any:
    """The value under one of the names, in the first mapping that has one."""
    for layer in layers:
        for name in _names(names):
            if isinstance(layer.get(name), str | int | float) and layer[name] != "":
                return layer[name]
    return None


def _plain(layer: Layer) -> Layer:
    return {re.sub(r"[\W_]+", "", str(key)).lower(): value for key, value in layer.items()}


def _names(names: Iterable[str]) -> list[str]:
    return [name.replace("_", "") for name in names]
