"""Which rows belong to which optimizer step, the same for any number of ranks."""

from __future__ import annotations

import math

import numpy as np

from agentrl.data_proto import DataProto
from agentrl.workers.collectives import gather_objects

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
    """

    def __init__(self, batch: DataProto, rows_per_batch: int, epochs: int, shuffle_seed: list[int] | None) -> None:
        counts: list[int] = gather_objects(len(batch))
        self.total_rows = sum(counts)
        self.num_batches = max(1, math.ceil(self.total_rows / rows_per_batch))
        self.epochs = epochs
        self._seed = shuffle_seed
        self._ids = _row_ids(batch, counts)

    def epoch(self, number: int) -> list[list[int]]:
        """This rank's rows of each mini-batch of an epoch; some lists may be empty."""
        places = self._ids
        if self._seed is not None:
            places = np.random.default_rng([*self._seed, number]).permutation(self.total_rows)[places]
        owner = places * self.num_batches // max(1, self.total_rows)
        return [np.flatnonzero(owner == index).tolist() for index in range(self.num_batches)]


def _row_ids(batch: DataProto, counts: list[int]) -> np.ndarray:
    if ROW_ID in batch.batch:
        return np.asarray(batch.batch[ROW_ID].cpu().numpy(), dtype=np.int64)
    import torch.distributed as dist

    first = sum(counts[: dist.get_rank()])
    return np.arange(first, first + len(batch), dtype=np.int64)
