"""Search: a client of the retrieval protocol (`POST /retrieve`), with retries and a configurable document format."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from agentrl.errors import ToolServiceError, suggest
from agentrl.interfaces import TOOL_CONFIG, BaseTool, ServiceClient, check_config
from agentrl.tools.search_documents import RESULTS, TEXTS, ShownDocument, read_document, results_of
from agentrl.types import JsonDict, ToolResponse

_CONFIG = (
    *TOOL_CONFIG,
    *("retrieval_service_url", "topk", "return_scores", "request_timeout_s", "retries", "backoff_s", "headers"),
    *("document_template", "query_template", "order", "max_documents", "max_document_chars", "empty_text"),
    "max_query_chars",
)
_DOCUMENT_FIELDS = ("number", "title", "body", "contents", "score", "id", "query")
_QUERY_FIELDS = ("query", "documents")
_ORDERS = ("best_first", "best_last")
_MAX_QUERIES = 16
_MAX_QUERY_CHARS = 16_384
"""The limit of `agentrl serve retrieval`."""


class Search(BaseTool):
    """Asks a retrieval service for documents.

    Args:
        config: the service: `retrieval_service_url` (required), `topk` (3; null: the service's default),
            `return_scores` (true), `request_timeout_s` (10), `retries` (3), `backoff_s` (0.5, doubled at each retry),
            `headers`, `max_query_chars` (16384, the service's limit; a longer query is an error for the model). The
            text for the model: `document_template` (fields `{number} {title} {body} {contents} {score} {id} {query}`),
            `query_template` (`{query} {documents}`), `order` (best_first or best_last), `max_documents` of one query
            (null: all), `max_document_chars` (null: all), `empty_text`.
        tool_schema: None: the built-in one.
    """

    config_aliases: ClassVar[Mapping[str, str]] = {
        "num_workers": "max_concurrency",
        "rate_limit": "max_concurrency",
        "enable_global_rate_limit": "limits_per",
        "timeout": "request_timeout_s",
    }

    def __init__(self, config: JsonDict, tool_schema: JsonDict | None = None) -> None:
        super().__init__(config, tool_schema)
        check_config(config, _CONFIG)
        try:
            self._service = ServiceClient(
                config.get("retrieval_service_url"),
                timeout_s=float(config.get("request_timeout_s", 10.0)),
                retries=int(config.get("retries", 3)),
                backoff_s=float(config.get("backoff_s", 0.5)),
                headers=config.get("headers"),
            )
        except ValueError as error:
            raise ValueError(f"`config.retrieval_service_url` {error}") from error
        self._service.url = self._service.url.removesuffix("/retrieve")
        self._topk = config.get("topk", 3)
        self._max_query_chars = int(config.get("max_query_chars", _MAX_QUERY_CHARS))
        self._with_scores = bool(config.get("return_scores", True))
        self._show = Documents(config)

    @classmethod
    def default_schema(cls) -> JsonDict:
        """A list of queries, or a single one."""
        queries = {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "maxItems": _MAX_QUERIES,
            "description": "Complete search queries; each is answered by itself.",
        }
        query = {"type": "string", "description": "A single search query, instead of a list."}
        return {
            "type": "function",
            "function": {
                "name": "search",
                "description": "Search for documents.",
                "parameters": {"type": "object", "properties": {"query_list": queries, "query": query}, "required": []},
            },
        }

    async def execute(self, arguments: JsonDict, **execute_kwargs: Any) -> ToolResponse:
        """Retrieve documents for all queries in one request.

        Raises:
            ToolServiceError: the service failed after all retries, or its answer does not fit the request.
        """
        queries = _queries(arguments)
        if not queries:
            return ToolResponse(text="search was not run: give `query_list`, a list of queries", is_error=True)
        longest = max(map(len, queries))
        if longest > self._max_query_chars:
            allowed = f"a query has {longest} characters; at most {self._max_query_chars} are allowed"
            return ToolResponse(text=f"search was not run: {allowed}", is_error=True)
        self._service.scope = self.scope
        body = {"queries": queries, "topk": self._topk, "return_scores": self._with_scores}
        answer = await self._service.post("/retrieve", body)
        results = results_of(answer, len(queries))
        if results is None:
            keys = f" (keys: {', '.join(answer)})" if isinstance(answer, dict) else ""
            wanted = f"wanted one list per query under one of {', '.join(RESULTS)}"
            got = f"{str(answer)[:200]}{keys}; {wanted}"
            raise ToolServiceError(f"{self._service.url} answered without one result per query: {got}")
        text = "\n\n".join(self._show(query, hits) for query, hits in zip(queries, results, strict=True))
        return ToolResponse(text=text, metrics={"documents": float(sum(map(len, results)))})

    async def release(self, **kwargs: Any) -> None:
        """Close the tool's own connections."""
        await self._service.aclose()


class Documents:
    """Turns the documents of one query into the text for the model.

    Args:
        config: see `Search`.

    Raises:
        ValueError: a template has an unknown field, or the order is unknown.
    """

    def __init__(self, config: JsonDict) -> None:
        self._document = str(config.get("document_template", "Doc {number} (Title: {title}) {body}"))
        self._query = str(config.get("query_template", "Results for: {query}\n{documents}"))
        _check_template("document_template", self._document, _DOCUMENT_FIELDS)
        _check_template("query_template", self._query, _QUERY_FIELDS)
        self._order = config.get("order", "best_first")
        if self._order not in _ORDERS:
            raise ValueError(f"`config.order`: got {self._order!r}.{suggest(str(self._order), _ORDERS)}")
        self._most = config.get("max_documents")
        self._chars = config.get("max_document_chars")
        self._empty = str(config.get("empty_text", "No documents found."))

    def __call__(self, query: str, hits: list[Any]) -> str:
        """The text of one query.

        Raises:
            ToolServiceError: a document has an unknown shape; lists its keys.
        """
        shown = []
        for number, hit in enumerate(hits[: self._most], start=1):
            document = read_document(hit)
            if document is None:
                raise _unknown(hit, number, query)
            shown.append(self._document.format(**_fields(document, number, query, self._chars)))
        if self._order == "best_last":
            shown.reverse()
        return self._query.format(query=query, documents="\n".join(shown) or self._empty)


def _fields(document: ShownDocument, number: int, query: str, chars: int | None) -> JsonDict:
    return {
        "number": number,
        "title": document.title,
        "body": document.body[:chars],
        "contents": document.contents[:chars],
        "score": document.score,
        "id": document.id,
        "query": query,
    }


def _unknown(hit: Any, number: int, query: str) -> ToolServiceError:
    """The error for a document that would reach the model empty."""
    got = f"the keys {', '.join(map(str, hit)) or 'of an empty object'}" if isinstance(hit, dict) else f"{hit!r:.200}"
    wanted = f"wanted its text under one of {', '.join(TEXTS)}, and not an empty one"
    return ToolServiceError(f"the search service's document {number} for {query!r:.100}: got {got}; {wanted}")


def _queries(arguments: JsonDict) -> list[str]:
    given = arguments.get("query_list") or arguments.get("query")
    queries = [given] if isinstance(given, str) else [str(query) for query in given or []]
    return [query for query in queries if query.strip()][:_MAX_QUERIES]


def _check_template(key: str, template: str, known: Iterable[str]) -> None:
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ValueError(f"`config.{key}`: {error}; write {{{{ for a brace") from error
    for name in fields:
        if name not in known:
            raise ValueError(f"`config.{key}`: unknown field {{{name}}}.{suggest(name, known)}")
