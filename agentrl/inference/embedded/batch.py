"""Builds the tensors of one step from the slot table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.inference.embedded.decoder import PrefillRows, Step
from agentrl.inference.embedded.ops import DirectRows, TorchOps
from agentrl.inference.embedded.slots import SlotTable

Ints = NDArray[np.int64]
LENGTH_ROUNDING = 16


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step, and the slots whose tokens it computes."""

    step: Step
    slots: Ints
    """Slots that take part."""
    counts: Ints
    """Tokens that the step computes of each."""
    sampled: Ints
    """Slots that sample a token, in the order of the logits' rows."""
    scored: list[tuple[int, int, int]]
    """`(slot, first position, tokens)` of prompts that are scored: all their logits are wanted, and come first."""


def build(table: SlotTable, prefill_budget: int, ops: TorchOps, device: torch.device) -> StepPlan | None:
    """Choose the tokens of the next step: one of every decoding slot, and prompt tokens up to the budget.

    Args:
        table: the slots; `known - computed` is what each has left to compute.
        prefill_budget: most prompt tokens.
        ops: says which rows its attention takes directly.
        device: where the step runs.

    Returns:
        The plan; None when there is nothing to compute.
    """
    active = table.active
    if not len(active):
        return None
    left = table.known[active] - table.computed[active]
    # left = [1, 50, 1, 3000] with a budget of 2,048: slots 0 and 2 decode, slot 1 prefills 50 tokens and slot 3 its
    # first 1,998. Direct rows come first, then the padded blocks of similar lengths.
    if (left == 1).all():
        order, sizes, groups = active, left, []
    else:
        prefill, counts = _within_budget(active[left > 1], left[left > 1], prefill_budget)
        few = counts <= ops.direct_tokens
        groups = _groups(prefill[~few], counts[~few])
        order = np.concatenate([active[left == 1], prefill[few], *(slots for slots, _ in groups)])
        sizes = np.concatenate([left[left == 1], counts[few], *(sizes for _, sizes in groups)])
    direct = int(sizes.sum()) - sum(int(counts.sum()) for _, counts in groups)
    ends = np.cumsum(sizes)
    # order [0, 2] with sizes [1, 3] and computed 100 and 10 -> rows [0, 2, 2, 2] at positions [100, 10, 11, 12].
    rows = np.repeat(order, sizes)
    positions = table.computed[rows] + np.arange(len(rows)) - np.repeat(ends - sizes, sizes)
    complete = table.computed[order] + sizes == table.known[order]  # a prompt cut by the budget samples nothing yet
    outputs, scored = _outputs(table, order, sizes, ends, complete)
    step = Step(
        ids=torch.from_numpy(table.tokens[rows, positions].astype(np.int64)).to(device),
        positions=torch.from_numpy(positions).to(device),
        slots=torch.from_numpy(rows).to(device),
        outputs=None if len(outputs) == len(rows) and not scored else torch.from_numpy(outputs).to(device),
        direct=_direct_rows(table, rows[:direct], ops, device) if direct else None,
        prefill=tuple(_prefill_rows(table, slots, counts, device) for slots, counts in groups),
    )
    return StepPlan(step, order, sizes, order[complete], scored)


def _within_budget(slots: Ints, left: Ints, budget: int) -> tuple[Ints, Ints]:
    """Cut the rows' tokens so that their sum is at most the budget."""
    before = np.cumsum(left) - left
    counts = np.minimum(left, budget - before)
    return slots[counts > 0], counts[counts > 0]


def _groups(slots: Ints, counts: Ints) -> list[tuple[Ints, Ints]]:
    """Group rows of about the same number of tokens, so that padding at most doubles a block."""
    # The binary exponent: 8 to 15 tokens are one group, 16 to 31 the next.
    magnitude = np.frexp(counts.astype(np.float64))[1]
    return [(slots[magnitude == m], counts[magnitude == m]) for m in np.unique(magnitude)]


def _outputs(
    table: SlotTable, order: Ints, sizes: Ints, ends: Ints, complete: NDArray[np.bool_]
) -> tuple[Ints, list[tuple[int, int, int]]]:
    """The tokens whose logits are wanted: all of rows that score their prompt, then the last of every complete row."""
    extra: list[Ints] = []
    scored: list[tuple[int, int, int]] = []
    for row in np.flatnonzero(table.rows.scores[order]).tolist():
        slot = int(order[row])
        owner = table.owners[slot]
        if owner is not None and owner.logprob_start is not None and not owner.ids:
            extra.append(np.arange(ends[row] - sizes[row], ends[row]))
            scored.append((slot, int(table.computed[slot]), int(sizes[row])))
    return np.concatenate([*extra, (ends - 1)[complete]]), scored


def _direct_rows(table: SlotTable, slots: Ints, ops: TorchOps, device: torch.device) -> DirectRows:
    # torch's attention is one batched product over the slots 0..span-1, idle ones included. `last` is the position up
    # to which a slot may look; the mask hides what lies beyond it.
    span = int(slots.max()) + 1
    if not ops.wants_bias:
        return DirectRows(len(slots), span, None, None)
    heads = table.cache.spec.num_kv_heads
    last = np.zeros(span, np.int64)
    last[slots] = table.computed[slots]
    length = min(table.cache.length, -(-(int(last.max()) + 1) // LENGTH_ROUNDING) * LENGTH_ROUNDING)
    limits = torch.from_numpy(np.repeat(last, heads)).to(device)[:, None]
    mask = torch.zeros((span * heads, length), dtype=table.cache.dtype, device=device)
    mask.masked_fill_(torch.arange(length, device=device) > limits, -torch.inf)
    index = None if span == len(slots) else torch.from_numpy(slots).to(device)
    return DirectRows(len(slots), span, index, mask.unsqueeze(1))


def _prefill_rows(table: SlotTable, slots: Ints, counts: Ints, device: torch.device) -> PrefillRows:
    # counts [3, 2] are padded to a block of 2 rows and width 3: the tokens go to the flat places [0, 1, 2, 3, 4] and
    # place 5 is padding. Token j of a row that starts at position s may look at positions 0..s+j.
    width, start = int(counts.max()), table.computed[slots]
    length = int((start + counts).max())
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    index = np.repeat(np.arange(len(slots)) * width, counts) + within
    limits = torch.from_numpy(start[:, None] + np.arange(width)).to(device)[:, None, :, None]
    bias = torch.zeros((len(slots), 1, width, length), dtype=table.cache.dtype, device=device)
    bias.masked_fill_(torch.arange(length, device=device) > limits, -torch.inf)
    return PrefillRows(torch.from_numpy(slots).to(device), torch.from_numpy(index).to(device), width, bias)
