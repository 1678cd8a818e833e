"""Reciprocal rank fusion of several searches (Cormack, Clarke and Büttcher, SIGIR 2009)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentrl.services.retrieval.bm25 import Hits

RANK_CONSTANT = 60
POOL = 100
"""Documents of each search that are fused; more when more are asked for."""


class _Search(Protocol):
    def search(self, queries: Sequence[str], k: int) -> list[Hits]: ...


class Hybrid:
    """Fuses the rankings of several searches; the score is the sum of 1 / (60 + rank)."""

    def __init__(self, searches: Sequence[_Search]) -> None:
        self._searches = searches

    def search(self, queries: Sequence[str], k: int) -> list[Hits]:
        """The k best documents of each query."""
        pools = [search.search(queries, max(k, POOL)) for search in self._searches]
        return [fuse(rankings, k) for rankings in zip(*pools, strict=True)]


def fuse(rankings: Sequence[Hits], k: int) -> Hits:
    """The k documents with the highest sum of 1 / (60 + rank); among equals the lower number."""
    scores: dict[int, float] = {}
    for hits in rankings:
        for rank, (number, _) in enumerate(hits, start=1):
            scores[number] = scores.get(number, 0.0) + 1 / (RANK_CONSTANT + rank)
    return sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))[:k]
