"""Limits and sizes of the server, with their defaults."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from agentrl.errors import UserInputError

MIB = 1024 * 1024


def _default_threads() -> int:
    return min(8, os.cpu_count() or 1)


@dataclass(frozen=True)
class RetrievalOptions:
    """What one server allows and spends."""

    default_topk: int = 3
    """Documents of a query when the request gives no `topk`, null or 0."""
    max_topk: int = 100
    max_queries: int = 4096
    """Queries of one request; trainers send those of a whole step at once."""
    max_query_chars: int = 16_384
    max_body_bytes: int = 64 * MIB
    max_waiting: int = 16_384
    """Queries that wait for a thread; more are answered 429."""
    timeout_s: float = 30.0
    """Time of one request; longer is answered 504."""
    max_batch: int = 64
    """Queries that are searched together."""
    threads: int = field(default_factory=_default_threads)
    """Searches at once, for an index that gains by it."""
    cache_bytes: int = 64 * MIB
    """Results kept for queries that come again; 0: none."""

    def __post_init__(self) -> None:
        """Refuse limits under which a valid request would always fail."""
        if self.max_waiting < self.max_queries:
            raise UserInputError(f"--max-waiting {self.max_waiting}: wanted at least --max-queries {self.max_queries}")
        if self.default_topk > self.max_topk:
            raise UserInputError(f"--topk {self.default_topk}: wanted at most --max-topk {self.max_topk}")
