"""From padded rows to micro-batches with next to no padding.

A padded row (prompt on the left, response on the right of `input_ids`) becomes the run of tokens that the model has to
read: from the first prompt token up to the one before the last chosen token. Rows without a chosen token are not run
at all. Which tokens are chosen is the caller's to say, by the name of a mask: an update chooses those that are trained
on (`loss_mask`), a pass without a gradient all that were sampled (`response_mask`)::

    input_ids   p p P P P | R R R r r      p, r: padding
    mask                    1 0 1 0 0      chosen: the first and the third token of the response
    run             P P P   R R            what predicts them: `sources` are the third and the fifth of the run

Runs go to the model in one of three shapes:

* **rows** (CPU, and GPUs without a variable-length kernel): `(b, T)`, rows of like length together, padded on the
  right. With causal attention no token sees the padding, so no attention mask is needed.
* **rows behind shared prompts**: the rollouts of one prompt read it once, `(u, P)`; the rows `(b, T)` hold only what
  follows and attend to the keys and values of their prompt. Gradients flow through those as through everything else.
* **packed** (GPU): `(1, N)`, runs end to end, for attention kernels that are told where each run begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from agentrl.chat.vision import MULTI_MODAL
from agentrl.data_proto import DataProto
from agentrl.errors import DataProtoError
from agentrl.workers.collectives import sum_over_ranks
from agentrl.workers.micro_batch_plan import Cut, MicroLimits, Piece, cut_rows, cut_shared
from agentrl.workers.pictures import RowMedia

ROW_COLUMNS = ("input_ids", "attention_mask", "responses")
"""The columns of a batch that say which tokens a row has, beside a mask."""

SHARING_MUST_SAVE = 0.9
"""Prompts are shared if that takes less than this share of the tokens: the second pass has its own costs."""


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    """The prompts of a micro-batch, each once.

    Attributes:
        input_ids: (u, P), padded on the right.
        lengths: (u,) tokens of each.
        owners: (b,) the prompt of each row.
    """

    input_ids: torch.Tensor
    lengths: torch.Tensor
    owners: torch.Tensor


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass. K is the number of chosen tokens, in row-major order of `mask`.

    Attributes:
        rows: (b,) which rows of the rank's batch these are.
        input_ids: (b, T), or (1, N) when packed.
        position_ids: None for rows (they count from 0), (1, N) when packed.
        sources: (K,) where the hidden state lies that predicts each chosen token: in the flattened `input_ids`, with
            shared prompts in these followed by it.
        labels: (K,) ids of the chosen tokens.
        mask: (b, R) bool, the chosen tokens, cut to this micro-batch's longest response.
        prompts: what the rows read before `input_ids`, where prompts are shared.
        kernel_args: what attention over packed runs wants to know about them.
        media: the rows' pictures; None: the batch has none.
        places: (K,) where each chosen token lies in the flattened `mask`.
        host_sources: `sources` in host memory, for whoever counts them without waiting for a GPU.
    """

    rows: torch.Tensor
    input_ids: torch.Tensor
    position_ids: torch.Tensor | None
    sources: torch.Tensor
    labels: torch.Tensor
    mask: torch.Tensor
    prompts: SharedPrompts | None = None
    kernel_args: dict[str, Any] = field(default_factory=dict)
    media: RowMedia | None = None
    places: torch.Tensor | None = None
    host_sources: torch.Tensor | None = None

    def spread(self, values_K: torch.Tensor) -> torch.Tensor:
        """Per-token values (K,) -> (b, R), zero where the mask is 0. Keeps the gradient."""
        assert self.places is not None, "a placeholder has no rows"
        # Not `masked_scatter`: its backward pass counts the mask, and waits for the GPU to do so.
        grid = torch.zeros(self.mask.numel(), dtype=values_K.dtype, device=values_K.device)
        return grid.index_copy(0, self.places, values_K).view(self.mask.shape)

    def to(self, device: torch.device) -> MicroBatch:
        """On a GPU, without waiting for it; `host_sources` stays."""
        if device == self.mask.device:
            return self
        names = ("rows", "input_ids", "position_ids", "sources", "labels", "mask", "places")
        moved: dict[str, Any] = {name: _moved(getattr(self, name), device) for name in names}
        if self.prompts is not None:
            moved["prompts"] = SharedPrompts(
                *(_moved(part, device) for part in (self.prompts.input_ids, self.prompts.lengths, self.prompts.owners))
            )
        moved["kernel_args"] = {name: _moved(value, device) for name, value in self.kernel_args.items()}
        return replace(self, **moved, host_sources=self.sources)

    def column(self, batch: DataProto, key: str) -> torch.Tensor:
        """This micro-batch's part (b, R) of a response-shaped column."""
        return batch.batch[key][self.rows, : self.mask.shape[1]]

    def optional_column(self, batch: DataProto, key: str) -> torch.Tensor | None:
        """As `column`; None where the batch has no such column."""
        return self.column(batch, key) if key in batch.batch else None


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """The micro-batches of this rank, longest first. All ranks agree on `shared`, so that their passes match."""

    batches: list[MicroBatch]
    shared: bool

    def placeholder(self, device: torch.device) -> MicroBatch:
        """A pass of one token and no row, for a rank to run while others still have rows, so that collectives match.

        Its outputs must be multiplied by zero and used nowhere else.
        """
        zero = torch.zeros(1, dtype=torch.long, device=device)
        starts = torch.tensor([0, 1], dtype=torch.int32, device=device)
        return MicroBatch(
            rows=zero[:0],
            input_ids=zero[None],
            position_ids=None,
            sources=zero,
            labels=zero,
            mask=torch.zeros(0, 1, dtype=torch.bool, device=device),
            prompts=SharedPrompts(zero[None], zero + 1, zero) if self.shared else None,
            kernel_args={"cu_seq_lens_q": starts, "max_length_q": 1},
        )


class RowLayout:
    """The places of each row's tokens, and the length of its run.

    Counting, comparing and choosing need numbers in host memory: on a GPU each would wait until everything before it is
    done. So rows are laid out where the batch is, in host memory, and ready micro-batches are sent to the GPU.

    Args:
        batch: `input_ids`, `attention_mask` (B, P + R), `responses` and the mask (B, R); `multi_modal_inputs` of rows
            that show pictures, which are read as rows only.
        mask: the column that chooses tokens: `response_mask` or `loss_mask`.
        device: where micro-batches are read; None: where the batch is.

    Raises:
        DataProtoError: a column is missing, shapes do not fit, or prompts are not padded on the left.
    """

    def __init__(self, batch: DataProto, mask: str, device: torch.device | None = None) -> None:
        self.media = batch.non_tensor_batch.get(MULTI_MODAL)
        batch = batch.select([*ROW_COLUMNS, mask], (), ())
        self.input_ids = batch.batch["input_ids"]
        self._device = device or self.input_ids.device
        self.responses = batch.batch["responses"]
        self.mask = batch.batch[mask].bool()
        rows, width = self.responses.shape
        self.prompt_width = self.input_ids.shape[1] - width
        attention = batch.batch["attention_mask"]
        if attention.shape != self.input_ids.shape or self.mask.shape != (rows, width) or self.prompt_width < 1:
            raise DataProtoError(
                f"input_ids {tuple(self.input_ids.shape)}, attention_mask {tuple(attention.shape)}, responses "
                f"{tuple(self.responses.shape)} and {mask} {tuple(self.mask.shape)} do not fit together"
            )
        prompt = attention[:, : self.prompt_width].bool()
        if not bool((prompt[:, 1:] >= prompt[:, :-1]).all() & prompt[:, -1].all()):
            raise DataProtoError("prompts must be padded on the left only, and each must hold at least one token")
        self.prompt_lengths = prompt.sum(1)
        # mask [1, 0, 1, 0] -> ends [1, 0, 3, 0] -> response length 3: what follows the last chosen token is not read.
        # With a prompt of 3 the run has 3 + 3 - 1 = 5 tokens, since the last chosen token itself is only predicted.
        ends = self.mask * torch.arange(1, width + 1, device=self.mask.device)
        self.response_lengths = ends.amax(1) if width else ends.sum(1)
        chosen = self.response_lengths > 0
        self.run_lengths = torch.where(chosen, self.prompt_lengths + self.response_lengths - 1, 0)

    @cached_property
    def prompt_numbers(self) -> list[int]:
        """A number per row; equal numbers are equal prompts."""
        places = torch.arange(self.prompt_width, device=self.mask.device)
        padding = places < (self.prompt_width - self.prompt_lengths)[:, None]
        ids = self.input_ids[:, : self.prompt_width].masked_fill(padding, -1)
        numbers: list[int] = torch.unique(ids, dim=0, return_inverse=True)[1].tolist()
        return numbers

    def micro_batches(self, rows: Sequence[int] | None, limits: MicroLimits) -> MicroBatches:
        """Split these rows (None: all) into micro-batches. A collective call if prompts may be shared."""
        lengths: list[int] = self.run_lengths.tolist()
        chosen = [row for row in (range(len(lengths)) if rows is None else rows) if lengths[row] > 0]
        plain = cut_rows(chosen, [lengths[row] for row in chosen], limits)
        if limits.share_prompts and limits.max_rows is None and not limits.packed:
            shared = self._cut_shared(chosen, limits)
            # Decided on the sums of all ranks: sharing takes a second pass, so every rank must choose the same.
            costs = sum_over_ranks([plain.cost, shared.cost])
            if costs[1] < SHARING_MUST_SAVE * costs[0]:
                return MicroBatches([self.shared(group).to(self._device) for group in shared.groups], shared=True)
        build = self.packed if limits.packed else self.padded
        batches = [build([piece.rows[0] for piece in group]).to(self._device) for group in plain.groups]
        return MicroBatches(batches, shared=False)

    def _cut_shared(self, rows: list[int], limits: MicroLimits) -> Cut:
        prompts, responses = self.prompt_lengths.tolist(), self.response_lengths.tolist()
        return cut_shared(
            rows,
            [self.prompt_numbers[row] for row in rows],
            [prompts[row] for row in rows],
            [max(responses[row] - 1, 1) for row in rows],
            limits,
        )

    def padded(self, chosen: list[int]) -> MicroBatch:
        """These rows as `(b, T)`, padded on the right."""
        rows = self._index(chosen)
        ids, mask = self._runs(rows), self._mask(rows)
        local, offsets = mask.nonzero(as_tuple=True)
        # Response token 0 is predicted by the last prompt token: for a prompt of 3, at place 2 of its row; token t is
        # predicted t places later.
        sources = local * ids.shape[1] + (self.prompt_lengths[rows] - 1)[local] + offsets
        media = None
        if self.media is not None:
            media = RowMedia([self.media[row] for row in chosen], self.run_lengths[rows].tolist(), ids)
        places = local * mask.shape[1] + offsets
        labels = self.responses[rows[local], offsets]
        return MicroBatch(rows, ids, None, sources, labels, mask, media=media, places=places)

    def packed(self, chosen: list[int]) -> MicroBatch:
        """These rows end to end, `(1, N)`."""
        rows = self._index(chosen)
        ids, mask, lengths = self._runs(rows), self._mask(rows), self.run_lengths[rows]
        kept = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        starts = torch.zeros(len(rows) + 1, dtype=torch.long, device=ids.device)
        torch.cumsum(lengths, 0, out=starts[1:])
        local, offsets = mask.nonzero(as_tuple=True)
        return MicroBatch(
            rows,
            ids[kept][None],
            torch.arange(ids.shape[1], device=ids.device).expand_as(ids)[kept][None],
            starts[:-1][local] + (self.prompt_lengths[rows] - 1)[local] + offsets,
            self.responses[rows[local], offsets],
            mask,
            kernel_args={"cu_seq_lens_q": starts.to(torch.int32), "max_length_q": ids.shape[1]},
            places=local * mask.shape[1] + offsets,
        )

    def shared(self, pieces: list[Piece]) -> MicroBatch:
        """The rows of each piece after the one prompt that they share."""
        rows = self._index([row for piece in pieces for row in piece.rows])
        mask = self._mask(rows)
        first_rows = self._index([piece.rows[0] for piece in pieces])
        sizes = self._index([len(piece.rows) for piece in pieces])
        owners = torch.arange(len(pieces), device=rows.device).repeat_interleave(sizes)
        lengths = self.prompt_lengths[first_rows]
        prompt_ids = self._gather(first_rows, int(lengths.max()))
        width = max(mask.shape[1] - 1, 1)
        local, offsets = mask.nonzero(as_tuple=True)
        # The prompt's last token predicts response token 0; token k - 1 of the row predicts token k. States lie flat:
        # first u * P of prompts, then b * width of rows. With u = 2, P = 3, width = 4 and row 1 behind prompt 0 of 2
        # tokens, its token 0 is predicted at 0 * 3 + 2 - 1 = 1, and its token 2 at 2 * 3 + 1 * 4 + 2 - 1 = 11.
        behind_prompt = prompt_ids.numel() + local * width + offsets - 1
        last_of_prompt = (owners * prompt_ids.shape[1] + lengths[owners] - 1)[local]
        return MicroBatch(
            rows,
            self.responses[rows, :width],
            None,
            torch.where(offsets == 0, last_of_prompt, behind_prompt),
            self.responses[rows[local], offsets],
            mask,
            SharedPrompts(prompt_ids, lengths, owners),
            places=local * mask.shape[1] + offsets,
        )

    def _index(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.mask.device)

    def _mask(self, rows: torch.Tensor) -> torch.Tensor:
        return self.mask[rows, : int(self.response_lengths[rows].max())]

    def _runs(self, rows: torch.Tensor) -> torch.Tensor:
        return self._gather(rows, int(self.run_lengths[rows].max()))

    def _gather(self, rows: torch.Tensor, width: int) -> torch.Tensor:
        """Ids (b, width) of rows moved to the left edge."""
        places = torch.arange(width, device=rows.device) + (self.prompt_width - self.prompt_lengths[rows])[:, None]
        return self.input_ids[rows[:, None], places.clamp_(max=self.input_ids.shape[1] - 1)]


def _moved(value: Any, device: torch.device) -> Any:
    """A tensor on its way to a GPU; anything else as it is."""
    return value.pin_memory().to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
