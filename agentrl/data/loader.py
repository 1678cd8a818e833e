"""`StatefulLoader`: batches in a seeded order, with a cursor that resumes exactly.

The order of an epoch is a pure function of seed and epoch, so the cursor is a few numbers, and no worker process holds
prefetched rows that a crash would lose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from agentrl.data.dataset import RLHFDataset
from agentrl.errors import ConfigError
from agentrl.types import Sample


class StatefulLoader:
    """Batches without end; rows that do not fill a last batch are dropped at the end of each epoch.

    Args:
        dataset: the rows.
        batch_size: rows per batch.
        shuffle: a new seeded order in each epoch; false: the order of the files. With weights, rows are always drawn.
        seed: seed of the order.
        weights: one weight per file of the dataset: each row comes from a file drawn by weight. An epoch still has as
            many rows as the dataset; small files repeat, in a new order each time.
        key: of the configuration, that gives the batch size.

    Raises:
        ConfigError: fewer rows than a batch, or weights that do not fit the files.
    """

    def __init__(
        self,
        dataset: RLHFDataset,
        batch_size: int,
        shuffle: bool,
        seed: int,
        weights: Sequence[float] | None = None,
        key: str = "data.train_batch_size",
    ) -> None:
        if len(dataset) < batch_size:
            raise ConfigError(f"{key}: got {batch_size}, but there are only {len(dataset)} rows")
        self._dataset, self._batch_size, self._shuffle, self._seed = dataset, batch_size, shuffle, seed
        self._files = dataset.file_positions()
        self._weights = None if weights is None else _checked_weights(weights, self._files)
        self.epoch = 0
        """Number of the current epoch."""
        self._position = 0
        self._drawn = [0] * len(self._files)
        self._order = self._order_of(0, self._drawn)

    @property
    def batch_size(self) -> int:
        """Rows of a batch."""
        return self._batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in an epoch."""
        return len(self._dataset) // self._batch_size

    @property
    def num_rows(self) -> int:
        """Rows of the dataset."""
        return len(self._dataset)

    def next_batch(self) -> list[Sample]:
        """The next batch; after the last one of an epoch, the first of the next."""
        # 10 rows in batches of 4: positions 0 and 4, then 8 + 4 > 10 begins the next epoch and two rows are dropped.
        if self._position + self._batch_size > len(self._order):
            self._next_epoch()
        picked = self._order[self._position : self._position + self._batch_size]
        self._position += self._batch_size
        return [self._dataset[position] for position in picked]

    def state_dict(self) -> dict[str, Any]:
        """The cursor, as plain values."""
        return {**self._identity(), "epoch": self.epoch, "position": self._position, "drawn": list(self._drawn)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken.

        Raises:
            ConfigError: the state belongs to other rows or to another order.
        """
        # {"epoch": 2, "position": 48} is enough: the order of epoch 2 is computed again from the seed, and the next
        # batch begins at its 49th row. Weighted files also need `drawn`: the rows that each gave in epochs 0 and 1.
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise ConfigError(
                    f"data.{key}: the checkpoint was made with {state.get(key)!r}, this run has {value!r}; "
                    "it cannot continue in the same order of rows"
                )
        self.epoch, self._position, self._drawn = state["epoch"], state["position"], list(state["drawn"])
        self._order = self._order_of(self.epoch, self._drawn)

    def _identity(self) -> dict[str, Any]:
        """Everything that the order of rows depends on. The batch size is not included: the cursor counts rows."""
        return {"seed": self._seed, "shuffle": self._shuffle, "rows": len(self._dataset), "weights": self._weights}

    def _next_epoch(self) -> None:
        if self._weights is not None:
            files = self._draw_files(self.epoch)
            self._drawn = [drawn + int((files == i).sum()) for i, drawn in enumerate(self._drawn)]
        self.epoch += 1
        self._position = 0
        self._order = self._order_of(self.epoch, self._drawn)

    def _order_of(self, epoch: int, drawn: Sequence[int]) -> list[int]:
        """Positions in the dataset in the order of an epoch; `drawn` counts the rows each file gave in earlier ones."""
        if self._weights is None:
            count = len(self._dataset)
            return self._random(epoch).permutation(count).tolist() if self._shuffle else list(range(count))
        files = self._draw_files(epoch)
        order = np.empty(len(files), dtype=np.int64)
        for i, positions in enumerate(self._files):
            places = np.flatnonzero(files == i)
            order[places] = self._draws_from(i, positions, drawn[i], len(places))
        return list(map(int, order))

    def _draw_files(self, epoch: int) -> np.ndarray[Any, Any]:
        weights = np.asarray(self._weights)
        return self._random(epoch).choice(len(weights), size=len(self._dataset), p=weights / weights.sum())

    def _draws_from(self, file: int, positions: list[int], start: int, count: int) -> list[int]:
        """Draws `start` to `start + count` of a file, which is read in one shuffled pass after another."""
        # A file of 3 rows, start 4, count 4: draws 4 and 5 are the last two of pass 1, draws 6 and 7 the first two of
        # pass 2, which has an order of its own.
        draws: list[int] = []
        number = start
        while len(draws) < count:
            which_pass, offset = divmod(number, len(positions))
            order = self._random(file + 1, which_pass).permutation(len(positions))
            taken = order[offset : offset + count - len(draws)]
            draws += [positions[place] for place in taken]
            number += len(taken)
        return draws

    def _random(self, *key: int) -> np.random.RandomState:
        # NumPy guarantees that a RandomState's stream never changes between versions; a Generator's may.
        return np.random.RandomState([self._seed % 2**32, *key])


def batches(dataset: RLHFDataset, batch_size: int | None) -> Iterator[list[Sample]]:
    """Every row once, in order (validation); the last batch may be smaller. None: one batch of all."""
    size = batch_size or len(dataset)
    for start in range(0, len(dataset), size):
        yield [dataset[position] for position in range(start, min(start + size, len(dataset)))]


def _checked_weights(weights: Sequence[float], files: Sequence[Sequence[int]]) -> list[float]:
    if len(weights) != len(files):
        raise ConfigError(f"data.dataset_weights: got {len(weights)} weights for {len(files)} files, wanted one each")
    for weight, positions in zip(weights, files, strict=True):
        if not weight >= 0 or (weight > 0 and not positions):
            raise ConfigError(
                f"data.dataset_weights: got {weight} for a file with {len(positions)} rows, wanted at least 0, and 0 "
                "for a file without rows"
            )
    if not sum(weights) > 0:
        raise ConfigError("data.dataset_weights: at least one weight must be above 0")
    return [float(weight) for weight in weights]
