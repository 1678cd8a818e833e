"""Assigns rows to ranks so that every rank has about the same number of tokens."""

from __future__ import annotations

from collections.abc import Sequence


def partition_by_tokens(lengths: Sequence[int], num_ranks: int) -> list[list[int]]:
    """Assign rows to ranks: the longest row first, always to the rank with the fewest tokens.

    Every rank gets at least one row if there are enough. Ties go to the lower rank, so the result depends on `lengths`
    alone.

    Returns:
        Row indices per rank, each list ascending.
    """
    # Lengths 9, 7, 6, 2 on two ranks: 9 to rank 0, 7 to rank 1, 6 to rank 1 (7 < 9), 2 to rank 0 (9 < 13). The ranks
    # get 11 and 13 tokens.
    loads = [(0, 0)] * num_ranks
    parts: list[list[int]] = [[] for _ in range(num_ranks)]
    for row in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        rank = min(range(num_ranks), key=lambda r: (bool(parts[r]), *loads[r], r))
        parts[rank].append(row)
        loads[rank] = (loads[rank][0] + lengths[row], loads[rank][1] + 1)
    return [sorted(part) for part in parts]


def balance_metrics(lengths: Sequence[int], parts: Sequence[Sequence[int]]) -> dict[str, float]:
    """`global_seqlen/*`: tokens per rank if rows were dealt in order, and as `parts` deals them."""
    size = -(-len(lengths) // len(parts))
    plain = [sum(lengths[i * size : (i + 1) * size]) for i in range(len(parts))]
    balanced = [sum(lengths[row] for row in part) for part in parts]
    return {
        "global_seqlen/min": float(min(plain)),
        "global_seqlen/max": float(max(plain)),
        "global_seqlen/mean": sum(plain) / len(plain),
        "global_seqlen/minmax_diff": float(max(plain) - min(plain)),
        "global_seqlen/balanced_min": float(min(balanced)),
        "global_seqlen/balanced_max": float(max(balanced)),
    }
