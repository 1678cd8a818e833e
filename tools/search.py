"""Search: a client of the retrieval protocol (`POST /retrieve`), with retries and backoff."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx

from agentrl.errors import ToolServiceError, suggest
from agentrl.interfaces import BaseTool
from agentrl.types import JsonDict, ToolResponse

_CONFIG = ("type", "timeout_s", "retrieval_service_url", "topk", "request_timeout_s", "retries", "backoff_s")
_MAX_BACKOFF_S = 30.0


class Search(BaseTool):
    """Asks a retrieval service for documents.

    Args:
        config: `retrieval_service_url` (needed), `topk` (3), `request_timeout_s` (10), `retries` (3), `backoff_s`
            (0.5, doubled at each retry).
        tool_schema: None: the built-in one.
    """

    def __init__(self, config: JsonDict, tool_schema: JsonDict | None = None) -> None:
        super().__init__(config, tool_schema)
        for key in config:
            if key not in _CONFIG:
                raise ValueError(f"unknown key 'config.{key}'.{suggest(key, _CONFIG)}")
        url = config.get("retrieval_service_url")
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise ValueError(f"`config.retrieval_service_url` must be an http(s) address, got {url!r}")
        self._url = url.rstrip("/") if url.rstrip("/").endswith("/retrieve") else url.rstrip("/") + "/retrieve"
        self._topk = int(config.get("topk", 3))
        self._request_timeout_s = float(config.get("request_timeout_s", 10.0))
        self._retries = int(config.get("retries", 3))
        self._backoff_s = float(config.get("backoff_s", 0.5))
        self._client: httpx.AsyncClient | None = None

    @classmethod
    def default_schema(cls) -> JsonDict:
        """A list of queries."""
        queries = {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "maxItems": 16,
            "description": "Complete search queries; each is answered by itself.",
        }
        return {
            "type": "function",
            "function": {
                "name": "search",
                "description": "Search for documents.",
                "parameters": {"type": "object", "properties": {"query_list": queries}, "required": ["query_list"]},
            },
        }

    async def execute(self, arguments: JsonDict, **execute_kwargs: Any) -> ToolResponse:
        """Retrieve documents for all queries in one request.

        Raises:
            ToolServiceError: the service failed after its retries, or answered something else (R9).
        """
        queries = list(arguments["query_list"])
        answer = await self._post({"queries": queries, "topk": self._topk, "return_scores": True})
        results = answer.get("result") if isinstance(answer, dict) else None
        if not isinstance(results, list) or len(results) != len(queries):
            raise ToolServiceError(f"{self._url} answered without one result per query: {str(answer)[:200]}")
        text = "\n\n".join(_show(query, hits) for query, hits in zip(queries, results, strict=True))
        return ToolResponse(text=text, metrics={"documents": float(sum(map(len, results)))})

    async def release(self, **kwargs: Any) -> None:
        """Close the connection."""
        if self._client is not None:
            await self._client.aclose()

    async def _post(self, body: JsonDict) -> Any:
        if self._client is None:  # no certificates to load for a plain http service
            secure = self._url.startswith("https")
            self._client = httpx.AsyncClient(timeout=self._request_timeout_s, verify=secure)
        failure = ""
        for attempt in range(self._retries + 1):
            wait_s = 0.0
            try:
                response = await self._client.post(self._url, json=body)
            except httpx.TransportError as error:
                failure = f"{type(error).__name__}: {error}"
            else:
                if response.is_success:
                    return self._read(response)
                failure = f"HTTP {response.status_code}: {response.text[:200]}"
                if response.status_code != 429 and response.status_code < 500:
                    break
                after = response.headers.get("retry-after", "")
                wait_s = float(after) if after.isdigit() else 0.0
            if attempt < self._retries:
                backoff_s = self._backoff_s * 2**attempt * random.uniform(0.5, 1.5)
                await asyncio.sleep(min(max(wait_s, backoff_s), _MAX_BACKOFF_S))
        raise ToolServiceError(f"{self._url} failed after {attempt + 1} attempts: {failure}")

    def _read(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except ValueError as error:
            raise ToolServiceError(f"{self._url} did not answer JSON: {response.text[:200]}") from error


def _show(query: str, hits: list[Any]) -> str:
    """Documents of one query as the model reads them; `score` and the `document` wrapper are optional."""
    lines = [f"Results for: {query}"]
    for number, hit in enumerate(hits, start=1):
        document = hit.get("document", hit) if isinstance(hit, dict) else {}
        title, _, body = str(document.get("contents", "")).partition("\n")
        lines.append(f"Doc {number} (Title: {title.strip()}) {body.strip()}")
    return "\n".join(lines if hits else [*lines, "No documents found."])
