"""The inner loop of BM25 search, compiled by numba and kept on disk.

bm25s brings a compiled search too. It takes ten seconds to compile at every start, against one second once, and gives
documents without any term of the query a place when fewer than k match.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float32]
Longs = npt.NDArray[np.int64]


def _search(
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
        sums: room for one number per document.
        documents: result of shape (queries, k): best first; among equals the lower number; untouched where none match.
        scores: result, of the same shape; zeros before the call.
    """
    k = documents.shape[1]
    for query in range(len(pointers) - 1):
        sums[:] = 0
        for place in range(pointers[query], pointers[query + 1]):
            for pair in range(indptr[terms[place]], indptr[terms[place] + 1]):
                sums[indices[pair]] += data[pair]
        found = 0
        worst = np.float32(0)
        for document in range(len(sums)):
            score = sums[document]
            if score > worst:
                rank = min(found, k - 1)
                while rank > 0 and scores[query, rank - 1] < score:
                    scores[query, rank] = scores[query, rank - 1]
                    documents[query, rank] = documents[query, rank - 1]
                    rank -= 1
                scores[query, rank] = score
                documents[query, rank] = document
                found = min(found + 1, k)
                if found == k:
                    worst = scores[query, k - 1]


def _compiled() -> Callable[..., None]:
    compiled: Callable[..., None]
    try:
        compiled = njit(nogil=True, cache=True)(_search)
    except RuntimeError:  # no folder to keep it in: a read-only system
        compiled = njit(nogil=True)(_search)
    return compiled


search = _compiled()
"""`_search`, compiled; it lets other threads run."""
