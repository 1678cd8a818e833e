"""Reads the answers of search services: documents under the usual names of retrievers, indexes and search APIs.

::

    {"document": {"contents": "..."}, "score": 0.5}                 Search-R1, agentrl
    {"page_content": "...", "metadata": {"title": "..."}}           LangChain; also as a pair with its score
    {"node": {"text": "...", "metadata": {...}}, "score": 0.5}      LlamaIndex
    {"_source": {"title": "...", "text": "..."}, "_score": 2.5}     Elasticsearch, OpenSearch
    {"properties": {...}}, {"payload": {...}}, {"entity": {...}}    Weaviate, Qdrant, Milvus
    {"title": "...", "snippet": "..."}, {"content": "..."}          web searches, Haystack
    {"title": "...", "content": [{"text": "..."}]}                  texts in parts, as of vector stores

and answers that hold them at the top, `{"result": [...]}`, or further in: `{"hits": {"hits": [...]}}` of Elasticsearch,
`{"response": {"docs": [...]}}` of Solr, `{"result": {"points": [...]}}` of Qdrant, `{"webPages": {"value": [...]}}` of
Bing, `{"web": {"results": [...]}}` of Brave, `{"query": {"search": [...]}}` of MediaWiki.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

RESULTS = (
    *("result", "results", "responses", "response", "documents", "docs", "hits", "matches", "passages", "chunks"),
    *("data", "items", "value", "records", "nodes", "points", "entries", "search_results", "retrieval_results"),
    *("result_items", "result_list", "sources", "organic", "organic_results", "web_pages", "web", "search", "pages"),
    *("retrieved", "retrieved_documents", "retrieved_docs", "retrieved_passages", "source_nodes", "source_documents"),
    *("contexts", "candidates", "references", "citations", "articles", "news", "rows", "objects", "list", "top_k"),
    *("outputs", "output", "texts", "root", "children", "message", "get", "query"),
)
"""Where an answer holds its results, or a mapping that does. Case, `_` and `-` do not matter, here and below."""
TEXTS = (
    *("contents", "page_content", "content", "text", "body", "passage", "passage_text", "document", "document_text"),
    *("doc", "chunk", "chunk_text", "chunk_content", "content_with_weight", "paragraph", "raw_text", "raw_content"),
    *("markdown", "full_text", "plain_text", "text_content", "article", "extract", "excerpt", "document_excerpt"),
    *("snippet", "snippets", "sentence", "abstract", "abstract_text", "summary", "description", "extractive_answers"),
    *("highlights", "extra_snippets", "context", "ctx", "evidence", "fact", "segment", "txt"),
    *("paragraphs", "sentences", "lines"),
)
"""Where a document holds its text: `pageContent` is `page_content`."""
_LIKE_TEXT = re.compile(
    r"(?:text|contents?|passage|paragraph|snippet|chunk|body|abstract|excerpt|sentence)s?$"
    r"|^(?:text|content|passage|paragraph|snippet|chunk|matched|highlighted)"
)
"""Other names of texts: `paragraph_text`, `docText`, `text_chunk`; but for those of `_NOT_TEXT`: `content_type`."""
_NOT_TEXT = re.compile(
    r"(?:url|uri|link|id|ids|title|type|format|hash|lang|language|score|index|length|name|date|path)$"
)
_INNER_TEXTS = ("text", "content", "snippet", "rendered", "value", "markdown")
"""Where a text that is a mapping holds it: `{"type": "text", "text": "..."}`."""
_TITLES = (
    *("title", "page_title", "wikipedia_title", "wiki_title", "doc_title", "document_title", "document_name"),
    *("heading", "headline", "file_name", "display_name", "name"),
)
_SCORES = ("score", "relevance_score", "similarity", "relevance", "search_score", "rerank_score")
_IDS = ("id", "doc_id", "document_id", "docno", "uuid", "pid", "passage_id", "chunk_id", "page_id")
_WRAPPERS = (
    *("document", "doc", "node", "source", "properties", "payload", "entity", "fields", "kwargs", "passage", "chunk"),
    *("object", "segment", "record", "item", "attributes", "struct_data", "derived_struct_data"),
    *("node_with_score", "obj", "hit", "match", "page", "article", "data", "json"),
)
"""Mappings around the document's own."""
_BESIDE = ("metadata", "meta", "payload", "extra_info", "additional", "highlight")
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
        held = _plain(answer)
        for key in _names(RESULTS):
            if key in held:
                found = _per_query(_unkeyed(key, held[key]), queries, may_be_empty=key != "result")
                if found is not None:
                    return found
        return None
    return _per_query(answer, queries, may_be_empty=False)


def _unkeyed(key: str, value: Any) -> Any:
    """Results that stand under names of their own: pages by number (MediaWiki), one list by its class (Weaviate)."""
    if key == "pages" and isinstance(value, dict):
        return list(value.values())
    return next(iter(value.values())) if key == "get" and isinstance(value, dict) and len(value) == 1 else value


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
    if isinstance(hit, str):
        return _with(_of_text(hit), score, "") if hit.strip() else None
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
    """The first text and title; an empty text is none. A title alone is a document if there are no other words."""
    key, text = next(_texts(layers), ("", ""))
    title = next(_titles(layers), "")
    if (not title and not text.strip()) or (not key and any(map(_is_unread, layers))):
        return None
    if key == "contents":
        document = _of_text(text)
        if not title or document.title.strip('"') == title.strip('"'):
            return document
    contents = f"{title}\n{text}" if title and key != "contents" else text
    return ShownDocument(title, text.strip(), contents)


def _texts(layers: list[Layer]) -> Iterator[tuple[str, str]]:
    """Texts that are not empty first: `{"text": "", "snippet": "..."}`; behind those of known names the others."""
    names = _names(TEXTS)
    keys = [(layer, key) for layer in layers for key in names]
    keys += [(layer, key) for layer in layers for key in layer if _is_like_text(key)]
    found = [(key, text) for layer, key in keys if (text := _text(layer.get(key))) is not None]
    yield from sorted(found, key=lambda pair: not pair[1].strip())


def _is_unread(layer: Layer) -> bool:
    """Whether words stand under a name that nothing here knows: a document without them would say too little."""
    known = (*_names(_TITLES), *_names(_IDS), *_names(_SCORES))
    return any(
        isinstance(value, str) and " " in value.strip() and key not in known and not _NOT_TEXT.search(key)
        for key, value in layer.items()
    )


def _is_like_text(key: str) -> bool:
    return bool(_LIKE_TEXT.search(key)) and not _NOT_TEXT.search(key) and key not in _names(RESULTS)


def _titles(layers: list[Layer]) -> Iterator[str]:
    for layer in layers:
        for value in (layer.get(name) for name in _names(_TITLES)):
            title = str(value) if isinstance(value, int | float) else (_text(value) or "").strip()
            if title:
                yield title


def _text(value: Any) -> str | None:
    """A text, the one within a mapping, or those of a list, each on a line of its own."""
    if isinstance(value, dict):
        inner = _plain(value)
        return next((inner[name] for name in _names(_INNER_TEXTS) if isinstance(inner.get(name), str)), None)
    if isinstance(value, list) and value:
        parts = [_text(part) for part in value if not isinstance(part, list)]
        texts = [part for part in parts if part is not None]
        return "\n".join(texts) if len(texts) == len(value) else None
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
