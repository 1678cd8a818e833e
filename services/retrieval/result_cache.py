"""A cache of query results with a limit in bytes; the least recently used results are dropped first."""

from __future__ import annotations

from collections import OrderedDict

from agentrl.services.retrieval.protocol import FoundDocuments

_OVERHEAD = 200
"""Bytes that an entry and each of its documents cost besides their text, roughly."""


class ResultCache:
    """Results by query and topk.

    Args:
        max_bytes: size; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max, self._bytes = max_bytes, 0
        self._found: OrderedDict[tuple[str, int], FoundDocuments] = OrderedDict()

    def get(self, query: str, k: int) -> FoundDocuments | None:
        """The result, if it is kept."""
        found = self._found.get((query, k))
        if found is not None:
            self._found.move_to_end((query, k))
        return found

    def put(self, query: str, k: int, found: FoundDocuments) -> None:
        """Keep a result that is not kept yet, if it fits at all."""
        size = _size(query, found)
        if size > self._max or (query, k) in self._found:
            return
        self._found[query, k] = found
        self._bytes += size
        while self._bytes > self._max:
            (old, _), gone = self._found.popitem(last=False)
            self._bytes -= _size(old, gone)


def _size(query: str, found: FoundDocuments) -> int:
    return _OVERHEAD + 4 * len(query) + sum(len(document) + _OVERHEAD for document, _ in found)
