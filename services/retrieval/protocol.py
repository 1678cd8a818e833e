"""Search-R1's `POST /retrieve`: what a request may hold, and how an answer is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator, model_validator

from agentrl.services.common.known_fields import KnownFields
from agentrl.services.retrieval.options import RetrievalOptions

FoundDocuments = list[tuple[bytes, float]]
"""Documents of one query as JSON, with their scores, best first."""


class Document(BaseModel):
    """A document; rows of the corpus with more fields give more fields."""

    model_config = ConfigDict(extra="allow")
    id: str
    contents: str = Field(description='`"Title"`, a line end, and the text')


class Hit(BaseModel):
    """A document with its score."""

    document: Document
    score: float


class Retrieved(BaseModel):
    """The answer: one list per query, best first, with fewer than `topk` where fewer match."""

    result: list[list[Hit]] | list[list[Document]]
    notes: list[str] = Field([], description="queries that were too long, and so were cut; absent if there is none")


class RetrieveRequest(KnownFields):
    """The fields of a request; `request_model` adds the limits of a server."""

    model_config = ConfigDict(strict=True)
    queries: list[str] | None = None
    query: str | None = None
    topk: int | None = None
    return_scores: bool | None = False

    @field_validator("topk", mode="before")
    @classmethod
    def _whole_number(cls, given: Any) -> Any:
        """To JSON, 3.0 is the integer 3."""
        return int(given) if isinstance(given, float) and given.is_integer() else given

    @model_validator(mode="after")
    def _one_spelling(self) -> RetrieveRequest:
        if (self.queries is None) == (self.query is None):
            raise ValueError('give either "queries": [text, …] or "query": text')
        return self

    def texts(self, max_chars: int) -> tuple[list[str], list[str]]:
        """The queries, whichever way they are given, and a note on each that is cut: it must not fail its batch."""
        given = self.queries if self.queries is not None else [self.query or ""]
        notes = [
            f"queries.{place}: got {len(text)} characters, searched for the first {max_chars}"
            for place, text in enumerate(given)
            if len(text) > max_chars
        ]
        return ([text[:max_chars] for text in given] if notes else given), notes


def request_model(options: RetrievalOptions) -> type[RetrieveRequest]:
    """The model of a request with the limits of one server."""
    fields: dict[str, Any] = {
        "queries": (Annotated[list[str], Field(max_length=options.max_queries)] | None, None),
        "topk": (Annotated[int, Field(ge=0, le=options.max_topk)] | None, None),
    }
    return create_model("RetrieveRequest", __base__=RetrieveRequest, **fields)


def request_schema(options: RetrievalOptions) -> dict[str, Any]:
    """The JSON schema of `request_model`, exact enough to make requests from."""
    text = {"type": "string", "description": f"cut at {options.max_query_chars} characters"}
    batch = {"type": "array", "items": text, "maxItems": options.max_queries}
    others = {
        "topk": {
            "anyOf": [{"type": "integer", "minimum": 0, "maximum": options.max_topk}, {"type": "null"}],
            "description": f"documents per query; null or 0: {options.default_topk}",
        },
        "return_scores": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": False},
    }

    def shape(given: str, schema: dict[str, Any], other: str) -> dict[str, Any]:
        properties = {given: schema, other: {"type": "null"}, **others}
        return {"type": "object", "properties": properties, "required": [given], "additionalProperties": False}

    return {
        "oneOf": [shape("queries", batch, "query"), shape("query", text, "queries")],
        "example": {"queries": ["Why is the sky blue?"], "topk": 3, "return_scores": True},
    }


def render_results(results: Iterable[FoundDocuments], with_scores: bool, notes: list[str]) -> bytes:
    """Write an answer; the documents are JSON already."""
    lists = (b",".join(_items(found, with_scores)) for found in results)
    more = b',"notes":' + orjson.dumps(notes) if notes else b""
    return b'{"result":[' + b",".join(b"[%b]" % items for items in lists) + b"]" + more + b"}"


def _items(found: FoundDocuments, with_scores: bool) -> Iterable[bytes]:
    if not with_scores:
        return (document for document, _ in found)
    return (b'{"document":%b,"score":%b}' % (document, orjson.dumps(round(score, 6))) for document, score in found)
