"""Which rows belong to which optimizer step, the same for any number of ranks.

Six rows in mini-batches of two, on two ranks; a balanced partition gave rank 0 the rows 0, 3 and 4::

    row in the batch of all ranks      0 1 2 3 4 5
    mini-batch (row * 3 // 6)          0 0 1 1 2 2
    rank 0 has its rows 0 1 2 there    0     1 2        so `epoch` is [[0], [1], [2]]
    rank 1                               0 1     2      so `epoch` is [[0], [1], [2]]

One rank would have taken the same three steps on the same rows: [[0, 1], [2, 3], [4, 5]].
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch.distributed as dist

from agentrl.algorithms import LossShare
from agentrl.data_proto import DataProto
from agentrl.workers.collectives import gather_objects, sum_over_ranks
from agentrl.workers.micro_batch_plan import MicroLimits
from agentrl.workers.micro_batches import MicroBatches, RowLayout

ROW_ID = "row_id"
"""Optional column: the row's number in the batch of all ranks. Needed if ranks get rows that are not consecutive
(balanced partitions), so that mini-batches do not depend on which rank computes them."""


class MiniBatchPlan:
    """Splits the batch of all ranks into mini-batches and says which of this rank's rows belong to each.

    Building it is a collective call.

    Args:
        batch: this rank's rows.
        rows_per_batch: rows of a mini-batch over all ranks. A batch that is not a multiple of it (rows were left out)
            is split into equal parts that are not larger.
        epochs: passes over the batch.
        shuffle_seed: None keeps the order; otherwise every epoch has a new order.
        copies: how many neighbouring ranks get the same rows.
    """

    def __init__(
        self, batch: DataProto, rows_per_batch: int, epochs: int, shuffle_seed: list[int] | None, copies: int = 1
    ) -> None:
        counts: list[int] = gather_objects(len(batch), copies)
        self.total_rows = sum(counts)
        self.num_batches = max(1, math.ceil(self.total_rows / rows_per_batch))
        self.epochs = epochs
        self.copies = copies
        self._seed = shuffle_seed
        self.row_numbers = _row_ids(batch, counts, dist.get_rank() // copies)
        """(rows,) of this rank's rows in the batch of all ranks."""

    def epoch(self, number: int) -> list[list[int]]:
        """This rank's rows of each mini-batch of an epoch; some lists may be empty."""
        places = self.row_numbers
        if self._seed is not None:
            places = np.random.default_rng([*self._seed, number]).permutation(self.total_rows)[places]
        # Sizes differ by at most one: places 0..9 in 3 batches are owned by 0 0 0 0 1 1 1 2 2 2.
        owner = places * self.num_batches // max(1, self.total_rows)
        return [np.flatnonzero(owner == index).tolist() for index in range(self.num_batches)]


def mini_batches(
    layout: RowLayout, plan: MiniBatchPlan, limits: MicroLimits, scale: float
) -> Iterator[tuple[MicroBatches, LossShare]]:
    """Every mini-batch of every epoch that has a trained token on some rank. A collective call.

    Args:
        layout: this rank's rows.
        plan: which of them belong to which mini-batch.
        limits: how large a micro-batch may be.
        scale: divisor of `seq-mean-token-sum-norm`.

    Yields:
        This rank's part (it may be empty), and what its losses must know about the mini-batch of all ranks.
    """
    tokens, sequences = layout.mask.sum(1), layout.mask.any(1)
    for rows in (rows for epoch in range(plan.epochs) for rows in plan.epoch(epoch)):
        own = [float(tokens[rows].sum()), float(sequences[rows].sum())]
        num_tokens, num_sequences = sum_over_ranks(own, plan.copies)
        if num_tokens:
            share = LossShare(num_tokens=num_tokens, num_sequences=num_sequences, scale=scale)
            yield layout.micro_batches(rows, limits), share


def _row_ids(batch: DataProto, counts: list[int], place: int) -> np.ndarray:
    if ROW_ID in batch.batch:
        return np.asarray(batch.batch[ROW_ID].cpu().numpy(), dtype=np.int64)
    first = sum(counts[:place])
    return np.arange(first, first + len(batch), dtype=np.int64)
