"""How degenerate sampled text is, from its token ids alone: this shows before the score falls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from agentrl.data_proto import DataProto

Ids = npt.NDArray[np.int64]
NGRAM = 4
RUN = 16
"""From this many repetitions in a row of one token (`!!!!`), the output is no longer text."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def degeneracy_metrics(rollouts: DataProto) -> dict[str, float]:
    """`health/repetition`, `health/token_runs` and `health/same_text` of a batch.

    Args:
        rollouts: with `responses` and `weight_versions` of shape `(B, T)`, and `uid` per row.

    Returns:
        Means over the trajectories: the share of 4-grams that occurred in it before; how many sampled one
        token 16 times in a row; how many sampled exactly what another prompt's trajectory did. Empty without rows.
    """
    if not len(rollouts):
        return {}
    sampled = (rollouts.batch["weight_versions"] >= 0).numpy()
    texts = [row[mask] for row, mask in zip(rollouts.batch["responses"].numpy(), sampled, strict=True)]
    return {
        "health/repetition": float(np.mean([repetition(ids) for ids in texts])),
        "health/token_runs": float(np.mean([longest_run(ids) >= RUN for ids in texts])),
        "health/same_text": same_text(texts, list(rollouts.non_tensor_batch["uid"])),
    }


def repetition(ids: Ids) -> float:
    """Share of the 4-grams that are not the first of their kind; 0 for fewer than two."""
    count = len(ids) - NGRAM + 1
    if count < 2:
        return 0.0
    # ids [1, 2, 3, 4, 1, 2, 3, 4]: 5 4-grams, of which 1234 occurs twice -> 4 distinct -> 1 - 4/5 = 0.2. Each 4-gram is
    # one 64-bit polynomial hash, computed for all places at once.
    hashes = np.zeros(count, np.uint64)
    for offset in range(NGRAM):
        hashes = hashes * _FACTOR + ids[offset : offset + count].astype(np.uint64)
    return 1.0 - np.unique(hashes).size / count


def longest_run(ids: Ids) -> int:
    """Length of the longest run of one id."""
    if not len(ids):
        return 0
    # ids [7, 7, 7, 5]: runs end at 2 and 3, and the distances from the end before (-1, 2) are the lengths 3 and 1.
    ends = np.flatnonzero(np.diff(ids, append=ids[-1] + 1))
    return int(np.diff(ends, prepend=-1).max())


def same_text(texts: Sequence[Ids], prompts: Sequence[Hashable]) -> float:
    """Share of the texts that were sampled for more than one prompt."""
    keys = [ids.tobytes() for ids in texts]
    seen = defaultdict(set)
    for key, prompt in zip(keys, prompts, strict=True):
        seen[key].add(prompt)
    return sum(len(seen[key]) > 1 for key in keys) / len(keys)
