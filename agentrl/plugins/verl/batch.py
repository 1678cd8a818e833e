"""verl's `DataProto` as its reward managers read it: one item is a row without the dimension of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from agentrl import data_proto
from agentrl.types import JsonDict


@dataclass
class DataProtoItem:
    """One row: tensors of its tokens, and its other values."""

    batch: dict[str, torch.Tensor]
    non_tensor_batch: JsonDict
    meta_info: JsonDict = field(default_factory=dict)


class DataProto(data_proto.DataProto):
    """A padded batch; `data[3]` is a `DataProtoItem`, and everything else as in `agentrl.data_proto`."""

    def __getitem__(self, rows: Any) -> Any:
        """A row by number; several by slice, index list or mask.

        Raises:
            IndexError: there is no such row.
        """
        if not isinstance(rows, int | np.integer):
            return super().__getitem__(rows)
        number = int(rows)
        if not -len(self) <= number < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        tensors = {name: tensor[number] for name, tensor in self.batch.items()}
        return DataProtoItem(
            tensors, {name: array[number] for name, array in self.non_tensor_batch.items()}, self.meta_info
        )

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))
