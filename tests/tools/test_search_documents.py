"""Documents reach the model whatever retriever, index or search API they come from; unknown ones are an error."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.errors import ToolServiceError
from agentrl.tools.search import Documents
from agentrl.tools.search_documents import read_document, results_of

SHAPES: dict[str, tuple[Any, str, str]] = {
    "Search-R1": ({"document": {"id": "7", "contents": '"T"\nB'}, "score": 0.5}, '"T"', "7 0.5"),
    "Search-R1, bare": ({"id": 7, "contents": '"T"\nB'}, '"T"', "7 "),
    "contents beside title": ({"id": 7, "title": "T", "contents": "B"}, "T", "7 "),
    "contents with their title": ({"title": "T", "contents": '"T"\nB', "score": 0.5}, '"T"', " 0.5"),
    "BEIR": ({"_id": "7", "title": "T", "text": "B", "metadata": {}}, "T", "7 "),
    "LangChain": ({"id": "7", "page_content": "B", "metadata": {"title": "T"}, "type": "Document"}, "T", "7 "),
    "LangChain.js": ({"pageContent": "B", "metadata": {"title": "T", "loc": {"lines": 3}}}, "T", " "),
    "LangChain, scored": ([{"page_content": "B", "metadata": {"title": "T"}}, 0.5], "T", " 0.5"),
    "LangChain, dumped": (
        {"lc": 1, "id": ["x"], "kwargs": {"page_content": "B", "metadata": {"title": "T"}}},
        "T",
        " ",
    ),
    "LlamaIndex": ({"node": {"id_": "7", "text": "B", "metadata": {"title": "T"}}, "score": 0.5}, "T", "7 0.5"),
    "LlamaIndex, file": ({"node": {"text": "B", "metadata": {"file_name": "T"}}, "score": None}, "T", " "),
    "Haystack": ({"id": "7", "content": "B", "meta": {"name": "T"}, "score": 0.5}, "T", "7 0.5"),
    "Elasticsearch": ({"_index": "w", "_id": "7", "_score": 0.5, "_source": {"title": "T", "body": "B"}}, "T", "7 0.5"),
    "Elasticsearch, fields": ({"_id": "7", "_score": 0.5, "fields": {"text": ["B"], "title": ["T"]}}, "T", "7 0.5"),
    "Weaviate": ({"uuid": "7", "properties": {"title": "T", "content": "B"}, "metadata": {"score": 0.5}}, "T", "7 0.5"),
    "Qdrant": ({"id": 7, "score": 0.5, "payload": {"title": "T", "page_content": "B"}}, "T", "7 0.5"),
    "Qdrant with LangChain": ({"id": 7, "payload": {"page_content": "B", "metadata": {"title": "T"}}}, "T", "7 "),
    "Pinecone": ({"id": "7", "score": 0.5, "metadata": {"title": "T", "text": "B"}}, "T", "7 0.5"),
    "Milvus": ({"id": 7, "distance": 0.1, "entity": {"title": "T", "text": "B"}}, "T", "7 "),
    "Typesense": ({"document": {"id": "7", "title": "T", "passage": "B"}, "highlights": []}, "T", "7 "),
    "Vespa": ({"id": "7", "relevance": 0.5, "fields": {"title": "T", "chunk": "B"}}, "T", "7 0.5"),
    "Azure": ({"@search.score": 0.5, "id": "7", "title": "T", "content": "B"}, "T", "7 0.5"),
    "MS MARCO": ({"pid": 7, "passage": "B"}, "", "7 "),
    "DPR": ({"passage": {"title": "T", "text": "B"}, "score": "0.5"}, "T", " 0.5"),
    "KILT": ({"wikipedia_title": "T", "text": ["B"]}, "T", " "),
    "web search": ({"title": "T", "link": "http://x", "snippet": "B"}, "T", " "),
    "Tavily": ({"title": "T", "url": "http://x", "content": "B", "raw_content": None, "score": 0.5}, "T", " 0.5"),
    "Dify": ({"segment": {"id": "7", "content": "B", "document": {"name": "T"}}, "score": 0.5}, "T", "7 0.5"),
    "Bing": ({"id": "7", "name": "T", "url": "http://x", "snippet": "B", "isNavigational": True}, "T", "7 "),
    "Brave": ({"type": "search_result", "title": "T", "url": "http://x", "description": "B"}, "T", " "),
    "You.com": ({"title": "T", "description": "", "snippets": ["B"], "url": "http://x"}, "T", " "),
    "Solr": ({"id": "7", "title": ["T"], "text": ["B"], "score": 0.5, "_version_": 1}, "T", "7 0.5"),
    "MediaWiki": ({"ns": 0, "title": "T", "pageid": 7, "snippet": "B", "wordcount": 3}, "T", "7 "),
    "MediaWiki, extracts": ({"pageid": 7, "title": "T", "extract": "B"}, "T", "7 "),
    "MediaWiki, REST": ({"id": 7, "key": "T", "title": "T", "excerpt": "B", "description": "d"}, "T", "7 "),
    "Firecrawl": ({"url": "http://x", "markdown": "B", "metadata": {"title": "T", "statusCode": 200}}, "T", " "),
    "Exa": ({"id": "7", "title": "T", "score": 0.5, "highlights": ["B"]}, "T", "7 0.5"),
    "vector store": ({"file_id": "f", "filename": "T", "content": [{"type": "text", "text": "B"}]}, "T", " "),
    "Bedrock": ({"content": {"text": "B", "type": "TEXT"}, "score": 0.5, "metadata": {"title": "T"}}, "T", " 0.5"),
    "Kendra": ({"Id": "7", "DocumentTitle": {"Text": "T"}, "DocumentExcerpt": {"Text": "B"}}, "T", "7 "),
    "Vertex": (
        {"document": {"id": "7", "derivedStructData": {"title": "T", "snippets": [{"snippet": "B"}]}}},
        "T",
        "7 ",
    ),
    "WordPress": ({"id": 7, "title": {"rendered": "T"}, "content": {"rendered": "B"}}, "T", "7 "),
    "an empty field first": ({"Title": "T", "Text": "", "Snippet": "B"}, "T", " "),
    "a name like those of texts": ({"title": "T", "content_type": "x", "paragraph_text": "B"}, "T", " "),
    "another such name": ({"section_title": "S", "title": "T", "docText": "B", "text_url": "u"}, "T", " "),
    "sentences": ({"wiki_title": "T", "sentences": ["B"]}, "T", " "),
    "HotpotQA": ({"title": "T", "context": "B"}, "T", " "),
    "LlamaIndex, scored": ({"node_with_score": {"node": {"text": "B", "metadata": {"title": "T"}}}}, "T", " "),
    "in data": ({"id": "7", "data": {"title": "T", "content": "B"}}, "T", "7 "),
    "a document as text": ({"document": "B", "score": 0.5}, "", " 0.5"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_usual_spellings(name: str) -> None:
    hit, title, rest = SHAPES[name]
    show = Documents({"document_template": "{title}|{body}|{id} {score}", "query_template": "{documents}"})
    assert show("q", [hit]) == f"{title}|B|{rest}"


def test_the_whole_text_is_in_contents() -> None:
    document = read_document({"page_content": "B", "metadata": {"title": "T"}})
    assert document is not None
    assert document.contents == "T\nB"


@pytest.mark.parametrize(
    "beside", [{}, {"url": "http://x y"}, {"lang": "en us", "id": "7 a"}, {"snippet": "", "kind": "a b"}]
)
def test_a_title_alone_is_a_document(beside: dict[str, Any]) -> None:
    document = read_document({"title": "The title", **beside})
    assert document is not None
    assert (document.title, document.body) == ("The title", "")


@pytest.mark.parametrize(
    ("hit", "got"),
    [
        ({"docid": "7", "vector": [0.5]}, "got the keys docid, vector; wanted its text under one of contents, page"),
        ({"document": {"blob": "x"}, "score": 0.5}, "got the keys document, score; wanted"),
        ({}, "of an empty object"),
        (None, "got None"),
        ([1, 2, 3], "got [1, 2, 3]"),
        ({"text": None}, "got the keys text"),
        ({"title": "T", "record": "what it says"}, "got the keys title, record; wanted"),
        ({"id": "7", "fields": {"name": "f", "answer": "x y"}}, "got the keys id, fields; wanted"),
        ({"page_content": "", "metadata": {}}, "got the keys page_content, metadata; wanted"),
        ({"contents": " \n", "id": "7"}, "got the keys contents, id; wanted its text under one of contents"),
        ({"document": {"contents": ""}, "score": 0.5}, "got the keys document, score; wanted"),
        ({"content": [{"type": "image"}]}, "got the keys content; wanted"),
        (5, "got 5"),
        (0.5, "got 0.5"),
        (True, "got True"),
        ("", "got ''"),
    ],
)
def test_an_unknown_shape_is_an_error_that_lists_its_keys(hit: Any, got: str) -> None:
    with pytest.raises(ToolServiceError) as caught:
        Documents({})("who?", [{"text": "good"}, hit])
    assert "the search service's document 2 for 'who?': " in str(caught.value)
    assert got in str(caught.value)


HIT = {"text": "B"}


@pytest.mark.parametrize(
    ("answer", "queries", "found"),
    [
        ({"result": [[HIT], []]}, 2, [[HIT], []]),
        ({"results": [[HIT]]}, 1, [[HIT]]),
        ([[HIT], [HIT]], 2, [[HIT], [HIT]]),
        ({"result": [HIT, HIT]}, 1, [[HIT, HIT]]),
        ({"documents": ["a", "b"]}, 1, [["a", "b"]]),
        ({"documents": [["a"], ["b"]], "distances": [[1], [2]]}, 2, [["a"], ["b"]]),
        ({"results": [{"query": "q", "documents": [HIT]}, {"query": "r", "documents": []}]}, 2, [[HIT], []]),
        ({"took": 1, "hits": {"total": 1, "hits": [HIT]}}, 1, [[HIT]]),
        ({"took": 1, "hits": {"total": 0, "hits": []}}, 1, [[]]),
        ({"responses": [{"hits": {"hits": [HIT]}}, {"hits": {"hits": []}}]}, 2, [[HIT], []]),
        (
            {"webPages": {"value": [HIT], "totalEstimatedMatches": 9}, "queryContext": {"originalQuery": "q"}},
            1,
            [[HIT]],
        ),
        ({"query": {"original": "q"}, "mixed": {"main": []}, "web": {"type": "search", "results": [HIT]}}, 1, [[HIT]]),
        ({"responseHeader": {"status": 0}, "response": {"numFound": 1, "start": 0, "docs": [HIT]}}, 1, [[HIT]]),
        ({"result": {"points": [HIT]}, "status": "ok", "time": 0.1}, 1, [[HIT]]),
        ({"result": [{"points": [HIT]}, {"points": []}], "status": "ok"}, 2, [[HIT], []]),
        ({"result": [HIT], "status": "ok", "time": 0.1}, 1, [[HIT]]),
        ({"batchcomplete": "", "query": {"searchinfo": {"totalhits": 1}, "search": [HIT]}}, 1, [[HIT]]),
        ({"query": {"pages": {"7": HIT, "8": HIT}}}, 1, [[HIT, HIT]]),
        ({"pages": [HIT]}, 1, [[HIT]]),
        ({"query": "q", "answer": None, "images": [], "results": [HIT]}, 1, [[HIT]]),
        ({"searchParameters": {"q": "q"}, "organic": [HIT], "peopleAlsoAsk": []}, 1, [[HIT]]),
        ({"search_metadata": {"id": "x"}, "organic_results": [HIT]}, 1, [[HIT]]),
        ({"success": True, "data": {"web": [HIT]}}, 1, [[HIT]]),
        ({"data": {"Get": {"Article": [HIT]}}}, 1, [[HIT]]),
        ({"root": {"id": "toplevel", "relevance": 1.0, "children": [HIT]}}, 1, [[HIT]]),
        ({"code": 0, "data": {"chunks": [HIT], "total": 1}}, 1, [[HIT]]),
        ({"retrievalResults": [HIT]}, 1, [[HIT]]),
        ({"ResultItems": [HIT], "QueryId": "x"}, 1, [[HIT]]),
        ({"source_nodes": [{"node": HIT, "score": 0.5}]}, 1, [[{"node": HIT, "score": 0.5}]]),
        ({"answer": "x", "source_documents": [HIT]}, 1, [[HIT]]),
        ({"retrieved_docs": ["a"]}, 1, [["a"]]),
        ({"code": 0, "data": {"list": [HIT]}}, 1, [[HIT]]),
        ({"results": [{"query": "q", "passages": ["a"]}, {"query": "r", "passages": ["b"]}]}, 2, [["a"], ["b"]]),
        ({"data": {"error": {"message": "no such index"}}}, 1, None),
        ({"query": "q", "error": "quota exceeded"}, 1, None),
        ({"result": [5]}, 1, None),
        ({"result": [HIT, HIT]}, 2, None),
        ({"result": [[HIT]]}, 2, None),
        ({"result": []}, 1, None),
        ({"result": [None]}, 1, None),
        ({"answer": "x"}, 1, None),
        ("text", 1, None),
        ([1], 1, None),
    ],
)
def test_answers(answer: Any, queries: int, found: Any) -> None:
    assert results_of(answer, queries) == found
