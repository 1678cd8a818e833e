"""From padded rows to micro-batches with next to no padding.

A padded row (prompt on the left, response on the right of `input_ids`) becomes the run of tokens that the model has to
read: from the first prompt token up to the one before the last trained token. Rows without a trained token are not run
at all. Runs go to the model in one of two shapes:

* **rows** (CPU, and GPUs without a variable-length kernel): `(b, T)`, rows of like length together, padded on the
  right. With causal attention no token sees the padding, so no attention mask is needed.
* **packed** (GPU): `(1, N)`, runs end to end, for attention kernels that are told where each run begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from agentrl.data_proto import DataProto
from agentrl.errors import DataProtoError

ROW_COLUMNS = ("input_ids", "attention_mask", "responses", "response_mask")
"""The columns of a batch that say which tokens a row has."""


@dataclass(frozen=True, slots=True)
class MicroLimits:
    """How rows are cut. `max_rows` given: by rows, else by `max_tokens`, padding included.

    `overhead_tokens` is what one more forward and backward pass costs, in tokens: below it, padding is the cheaper way.
    """

    max_tokens: int
    max_rows: int | None = None
    packed: bool = False
    overhead_tokens: int = 128


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass. K is the number of trained tokens, in row-major order of `mask`.

    Attributes:
        rows: (b,) which rows of the rank's batch these are.
        input_ids: (b, T), or (1, N) when packed.
        position_ids: None for rows (they count from 0), (1, N) when packed.
        kernel_args: what a variable-length attention kernel wants to know about the runs.
        sources: (K,) where in the flattened `input_ids` the hidden state lies that predicts each trained token.
        labels: (K,) ids of the trained tokens.
        mask: (b, R) bool, the response mask cut to this micro-batch's longest response.
    """

    rows: torch.Tensor
    input_ids: torch.Tensor
    position_ids: torch.Tensor | None
    sources: torch.Tensor
    labels: torch.Tensor
    mask: torch.Tensor
    kernel_args: dict[str, torch.Tensor | int] = field(default_factory=dict)

    def spread(self, values_K: torch.Tensor) -> torch.Tensor:
        """Per-token values (K,) -> (b, R), zero where the mask is 0. Keeps the gradient."""
        return torch.zeros(self.mask.shape, dtype=values_K.dtype, device=values_K.device).masked_scatter(
            self.mask, values_K
        )

    def column(self, batch: DataProto, key: str) -> torch.Tensor:
        """This micro-batch's part (b, R) of a response-shaped column."""
        return batch.batch[key][self.rows, : self.mask.shape[1]]


def placeholder(device: torch.device) -> MicroBatch:
    """A forward pass of one token and no row: what a rank runs while others still have rows, so that collectives match.

    It has one source and an empty mask; its outputs must be multiplied by zero and enter nothing else.
    """
    zero = torch.zeros(1, dtype=torch.long, device=device)
    kernel_args: dict[str, torch.Tensor | int] = {
        "cu_seq_lens_q": torch.tensor([0, 1], dtype=torch.int32, device=device),
        "max_length_q": 1,
    }
    return MicroBatch(
        zero[:0], zero[None], None, zero, zero, torch.zeros(0, 1, dtype=torch.bool, device=device), kernel_args
    )


class RowLayout:
    """Where the tokens of each row are, and how long its run is.

    Args:
        batch: `input_ids`, `attention_mask` (B, P + R), `responses`, `response_mask` (B, R).

    Raises:
        DataProtoError: a column is missing, shapes do not fit, or prompts are not padded on the left.
    """

    def __init__(self, batch: DataProto) -> None:
        batch = batch.select(ROW_COLUMNS, (), ())
        self.input_ids = batch.batch["input_ids"]
        self.responses = batch.batch["responses"]
        self.mask = batch.batch["response_mask"].bool()
        rows, width = self.responses.shape
        self.prompt_width = self.input_ids.shape[1] - width
        attention = batch.batch["attention_mask"]
        if attention.shape != self.input_ids.shape or self.mask.shape != (rows, width) or self.prompt_width < 1:
            raise DataProtoError(
                f"input_ids {tuple(self.input_ids.shape)}, attention_mask {tuple(attention.shape)}, responses "
                f"{tuple(self.responses.shape)} and response_mask {tuple(self.mask.shape)} do not belong together"
            )
        prompt = attention[:, : self.prompt_width].bool()
        if not bool((prompt[:, 1:] >= prompt[:, :-1]).all() & prompt[:, -1].all()):
            raise DataProtoError("prompts must be padded on the left and hold at least one token")
        self.prompt_lengths = prompt.sum(1)
        ends = self.mask * torch.arange(1, width + 1, device=self.mask.device)
        self.response_lengths = ends.amax(1) if width else ends.sum(1)
        trained = self.response_lengths > 0
        self.run_lengths = torch.where(trained, self.prompt_lengths + self.response_lengths - 1, 0)

    def micro_batches(self, rows: Sequence[int] | None, limits: MicroLimits) -> list[MicroBatch]:
        """Cut these rows (None: all) into micro-batches, the longest first, without rows that train nothing."""
        lengths = self.run_lengths.tolist()
        chosen = [row for row in (range(len(lengths)) if rows is None else rows) if lengths[row] > 0]
        groups = plan_groups([lengths[row] for row in chosen], limits)
        build = self._packed if limits.packed else self._padded
        return [build(torch.tensor([chosen[i] for i in group], device=self.mask.device)) for group in groups]

    def _padded(self, rows: torch.Tensor) -> MicroBatch:
        ids, mask, firsts = self._runs(rows)
        local, offsets = mask.nonzero(as_tuple=True)
        sources = local * ids.shape[1] + firsts[local] + offsets
        return MicroBatch(rows, ids, None, sources, self.responses[rows[local], offsets], mask)

    def _packed(self, rows: torch.Tensor) -> MicroBatch:
        ids, mask, firsts = self._runs(rows)
        lengths = self.run_lengths[rows]
        kept = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        starts = torch.zeros(len(rows) + 1, dtype=torch.long, device=ids.device)
        torch.cumsum(lengths, 0, out=starts[1:])
        local, offsets = mask.nonzero(as_tuple=True)
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)[kept]
        kernel_args: dict[str, torch.Tensor | int] = {
            "cu_seq_lens_q": starts.to(torch.int32),
            "max_length_q": ids.shape[1],
        }
        return MicroBatch(
            rows,
            ids[kept][None],
            positions[None],
            starts[:-1][local] + firsts[local] + offsets,
            self.responses[rows[local], offsets],
            mask,
            kernel_args,
        )

    def _runs(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids (b, T) moved to the left edge, mask (b, R), and the place of the state that predicts response token 0."""
        prompts = self.prompt_lengths[rows]
        width = int(self.run_lengths[rows].max())
        places = torch.arange(width, device=rows.device) + (self.prompt_width - prompts)[:, None]
        ids = self.input_ids[rows[:, None], places.clamp_(max=self.input_ids.shape[1] - 1)]
        return ids, self.mask[rows, : int(self.response_lengths[rows].max())], prompts - 1


def plan_groups(lengths: Sequence[int], limits: MicroLimits) -> list[list[int]]:
    """Indices of `lengths` in groups that fit the limits, longest first.

    Packed runs fill one group after the other. Rows are cut where padding plus the overhead of one more group is
    least (exact, by dynamic programming over the sorted lengths). One row may exceed `max_tokens` alone.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    ordered = np.array([lengths[i] for i in order], dtype=np.int64)
    if limits.packed:
        bounds = _fill(ordered, limits)
    elif limits.max_rows is not None:
        bounds = [*range(0, len(order), limits.max_rows), len(order)]
    else:
        bounds = _cheapest_cuts(ordered, limits)
    return [order[start:stop] for start, stop in itertools.pairwise(bounds)][::-1]


def _fill(lengths: np.ndarray, limits: MicroLimits) -> list[int]:
    bounds, used = [0], 0
    for i, length in enumerate(lengths.tolist()):
        full = i - bounds[-1] >= limits.max_rows if limits.max_rows is not None else used + length > limits.max_tokens
        if i > bounds[-1] and full:
            bounds.append(i)
            used = 0
        used += length
    return [*bounds, len(lengths)] if len(lengths) else [0]


def _cheapest_cuts(lengths: np.ndarray, limits: MicroLimits) -> list[int]:
    """Bounds of contiguous groups of ascending lengths with the least total of `rows * longest + overhead`."""
    count = len(lengths)
    best = np.zeros(count + 1)
    cut = np.zeros(count + 1, dtype=np.int64)
    for stop in range(1, count + 1):
        longest = int(lengths[stop - 1])
        first = max(0, stop - max(1, limits.max_tokens // max(longest, 1)))
        costs = best[first:stop] + (stop - np.arange(first, stop)) * longest
        choice = int(costs.argmin())
        cut[stop] = first + choice
        best[stop] = costs[choice] + limits.overhead_tokens
    bounds = [count]
    while bounds[-1] > 0:
        bounds.append(int(cut[bounds[-1]]))
    return bounds[::-1]
