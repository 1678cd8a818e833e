"""Plans how a mini-batch is split into micro-batches, from lengths alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class MicroLimits:
    """How rows are split: by rows if `max_rows` is given, else by `max_tokens`, padding included.

    Attributes:
        max_tokens: most tokens of a micro-batch; a single row (or one prompt with one row) may exceed it.
        max_rows: most rows of a micro-batch.
        packed: runs end to end instead of rows.
        share_prompts: rows with the same prompt may read it once, if that computes fewer tokens.
        overhead_tokens: cost of one more forward and backward pass, in tokens: padding that costs less is cheaper.
    """

    max_tokens: int
    max_rows: int | None = None
    packed: bool = False
    share_prompts: bool = False
    overhead_tokens: int = 128


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that stay together: one row, or rows with one prompt.

    Attributes:
        rows: which rows.
        longest: tokens that each row is padded to; without `prompt` this includes its prompt.
        prompt: tokens of the prompt that all rows read once; 0: nothing is shared.
    """

    rows: tuple[int, ...]
    longest: int
    prompt: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Groups of pieces, one per micro-batch, the longest first, and their cost in tokens."""

    groups: list[list[Piece]]
    cost: float


def cut_rows(rows: Sequence[int], lengths: Sequence[int], limits: MicroLimits) -> Cut:
    """Split rows whose prompts are not shared.

    Args:
        rows: which rows.
        lengths: tokens that each of them reads, prompt included.
        limits: packed runs fill one group after the other; rows are split at the least cost.
    """
    pieces = [Piece((row,), length) for row, length in zip(rows, lengths, strict=True)]
    pieces.sort(key=lambda piece: piece.longest)
    if limits.packed or limits.max_rows is not None:
        groups = _fill(pieces, limits)
        return Cut(groups[::-1], float(sum(lengths)))
    return _cheapest(pieces, limits)


def cut_shared(
    rows: Sequence[int],
    prompts: Sequence[int],
    prompt_lengths: Sequence[int],
    lengths: Sequence[int],
    limits: MicroLimits,
) -> Cut:
    """Split rows so that those with the same prompt read it once.

    A group of rows is first split where reading its prompt again is cheaper than padding its rows to the longest. Three
    rows behind a prompt of 100 tokens::

        responses 5, 6, 50     one piece: 3 * 50 + 100 = 250, cheaper than 2 * 6 + 100 + 50 + 100 = 262
        responses 5, 6, 120    two pieces: 2 * 6 + 100 + 120 + 100 = 332, cheaper than 3 * 120 + 100 = 460

    Args:
        rows: which rows.
        prompts: number of each row's prompt; equal numbers are equal prompts.
        prompt_lengths: tokens of each row's prompt.
        lengths: tokens that each row reads after its prompt.
        limits: as for `cut_rows`.
    """
    groups: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompts):
        groups.setdefault(prompt, []).append(place)
    pieces = []
    for places in groups.values():
        tokens = prompt_lengths[places[0]]
        # Within a group one more piece costs one more reading of the prompt: that is its overhead.
        alone = sorted((Piece((rows[place],), lengths[place]) for place in places), key=lambda piece: piece.longest)
        inner = MicroLimits(max(1, limits.max_tokens - tokens), overhead_tokens=tokens)
        pieces += [_join(part, tokens) for part in _cheapest(alone, inner).groups]
    pieces.sort(key=lambda piece: piece.longest)
    return _cheapest(pieces, limits)


def _join(parts: list[Piece], prompt: int) -> Piece:
    return Piece(tuple(row for part in parts for row in part.rows), max(part.longest for part in parts), prompt)


def _fill(pieces: list[Piece], limits: MicroLimits) -> list[list[Piece]]:
    groups: list[list[Piece]] = []
    used = 0
    for piece in pieces:
        full = used + piece.longest > limits.max_tokens
        if limits.max_rows is not None:
            full = bool(groups) and len(groups[-1]) >= limits.max_rows
        if not groups or full:
            groups.append([])
            used = 0
        groups[-1].append(piece)
        used += piece.longest
    return groups


def _cheapest(pieces: list[Piece], limits: MicroLimits) -> Cut:
    """Contiguous groups of pieces, sorted by length, with the least cost: exact, by dynamic programming.

    A group costs its padded rows, its padded prompts and the overhead of its passes. Rows of 10, 11 and 40 tokens, at
    most 100 in a group, overhead 20::

        [10 11 40]       3 * 40 = 120 tokens: too many
        [10 11] [40]     22 + 20 + 40 + 20 = 102       the least
        [10] [11 40]     10 + 20 + 80 + 20 = 130
        [10] [11] [40]   61 + 3 * 20 = 121

    `best[stop]` is the least cost of the first `stop` pieces, and `cut[stop]` where their last group begins.
    """
    count = len(pieces)
    longest = np.array([piece.longest for piece in pieces], dtype=np.int64)
    prompts = np.array([piece.prompt for piece in pieces], dtype=np.int64)
    rows_before = np.concatenate([[0], np.cumsum([len(piece.rows) for piece in pieces], dtype=np.int64)])
    best, cut = np.zeros(count + 1), np.zeros(count + 1, dtype=np.int64)
    for stop in range(1, count + 1):
        first = _first_that_fits(rows_before, longest, stop, limits.max_tokens)
        # For every start of the last group at once: sorted by length, its last piece is the one all rows are padded to;
        # of its prompts the longest counts, a maximum over what follows the start.
        widest = np.maximum.accumulate(prompts[first:stop][::-1])[::-1]
        tokens = (rows_before[stop] - rows_before[first:stop]) * longest[stop - 1]
        tokens = tokens + np.arange(stop - first, 0, -1) * widest
        allowed = tokens <= limits.max_tokens
        allowed[-1] = True  # a single piece may exceed the limit: it cannot be split
        costs = np.where(allowed, best[first:stop] + tokens, np.inf)
        choice = int(costs.argmin())
        cut[stop], best[stop] = first + choice, costs[choice] + limits.overhead_tokens
    bounds = [count]
    while bounds[-1] > 0:
        bounds.append(int(cut[bounds[-1]]))
    groups = [pieces[start:stop] for stop, start in itertools.pairwise(bounds)]
    return Cut(groups, float(best[count]))


def _first_that_fits(rows_before: np.ndarray, longest: np.ndarray, stop: int, max_tokens: int) -> int:
    """The first piece of the largest group that could end at `stop`, counting rows only: limits the search."""
    most_rows = max_tokens // max(int(longest[stop - 1]), 1)
    return min(stop - 1, int(np.searchsorted(rows_before, rows_before[stop] - most_rows)))
