"""A cache of query results with a limit in bytes; the least recently used results are dropped first."""

from __future__ import annotations

from cachetools import LRUCache

from agentrl.services.retrieval.protocol import FoundDocuments

_OVERHEAD = 200
"""Bytes that an entry and each of its documents cost besides their text, roughly."""


class ResultCache:
    """Results by query and topk.

    Args:
        max_bytes: size; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self._kept: LRUCache[tuple[str, int], tuple[int, FoundDocuments]] = LRUCache(max_bytes, lambda kept: kept[0])

    def get(self, query: str, k: int) -> FoundDocuments | None:
        """The result, if it is kept."""
        kept = self._kept.get((query, k))
        return None if kept is None else kept[1]

    def put(self, query: str, k: int, found: FoundDocuments) -> None:
        """Keep a result, if it fits at all."""
        size = _OVERHEAD + 4 * len(query) + sum(len(document) + _OVERHEAD for document, _ in found)
        if size <= self._kept.maxsize:
            self._kept[query, k] = size, found
