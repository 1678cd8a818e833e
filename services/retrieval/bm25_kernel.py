"""The inner loop of BM25 search, compiled by numba and kept on disk.

bm25s brings a compiled search too. It takes ten seconds to compile at every start, against one second once, and gives
documents without any term of the query a place when fewer than k match.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

BLOCK = 64
"""Documents that are looked at together: most blocks hold none that is among the best."""

Floats = npt.NDArray[np.float32]
Longs = npt.NDArray[np.int64]
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _compiled(function: _Function) -> _Function:
    """Compile a function that lets other threads run."""
    compiled: _Function
    try:
        compiled = njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder to keep it in: a read-only system
        compiled = njit(nogil=True)(function)
    return compiled


@_compiled
def _largest(numbers: npt.NDArray[np.int32]) -> np.int32:
    """A function of its own: inside the loop over blocks it is not compiled to vectors."""
    largest = np.int32(0)
    for place in range(len(numbers)):
        largest = max(largest, numbers[place])
    return largest


@_compiled
def _rank(block: Floats, first: int, limit: Floats, found: int, documents: Longs, scores: Floats) -> int:
    """Put the documents of a block that are better than `limit` in their places; what is found then."""
    k = len(documents)
    for place in range(len(block)):
        score = block[place]
        if score > limit[0]:
            rank = min(found, k - 1)
            while rank > 0 and scores[rank - 1] < score:
                scores[rank], documents[rank] = scores[rank - 1], documents[rank - 1]
                rank -= 1
            scores[rank], documents[rank] = score, first + place
            found = min(found + 1, k)
            if found == k:
                limit[0] = scores[k - 1]
    return found


@_compiled
def search(
    data: Floats,
    indices: npt.NDArray[np.int32],
    indptr: Longs,
    terms: Longs,
    pointers: Longs,
    sums: Floats,
    documents: Longs,
    scores: Floats,
) -> None:
    """Find the best documents of many queries.

    Args:
        data: score of every (term, document) pair, term by term (bm25s).
        indices: its document.
        indptr: where the pairs of a term start.
        terms: term numbers of all queries, one query after the other.
        pointers: where each query's terms start in `terms`, and their end.
        sums: zeros, one per document, before and after the call.
        documents: result of shape (queries, k): best first; among equals the lower number; untouched where none match.
        scores: result, of the same shape; zeros before the call.
    """
    # Numbers that are not negative have the order of their bits, and the largest of many integers is found by vectors.
    bits, limit = sums.view(np.int32), np.zeros(1, np.float32)
    limit_bits = limit.view(np.int32)
    for query in range(len(pointers) - 1):
        for term in terms[pointers[query] : pointers[query + 1]]:
            scored, added = indices[indptr[term] : indptr[term + 1]], data[indptr[term] : indptr[term + 1]]
            for pair in range(len(scored)):
                sums[np.uint32(scored[pair])] += added[pair]  # unsigned: it cannot count from the end
        found = 0
        limit[0] = 0
        for start in range(0, len(sums), BLOCK):
            block = sums[start : start + BLOCK]
            if _largest(bits[start : start + BLOCK]) > limit_bits[0]:
                found = _rank(block, start, limit, found, documents[query], scores[query])
            block[:] = 0
