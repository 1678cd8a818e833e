"""Runs requests through `model.generate`, a batch at a time.

`generate` computes; it does not choose. In each of its steps a logits processor gets the logits of all rows, samples
one token per row as the embedded engine does (with the row's own parameters and seed) and leaves only that token
possible. So log-probs, seeds, stop strings and penalties are the embedded engine's, whatever the model.

A batch is fixed while it runs. It is left early when at least as many requests wait as still run, so that no request
waits for the longest of another batch: those that still run go on in the next batch, which computes their tokens again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.inference.embedded.ops import TorchOps
from agentrl.inference.embedded.request import GenerationRequest
from agentrl.inference.embedded.request_queue import RequestQueue, draw
from agentrl.inference.embedded.sampler import RowTable
from agentrl.inference.hf.model import HFModel

Tick = Callable[[list[GenerationRequest]], bool]
"""Called with the rows after each token; False: the engine stops."""


class BatchQueue(RequestQueue):
    """Requests over a model of transformers. Not thread-safe: the engine's thread owns it.

    Args:
        model: the model.
        max_running: most rows of a batch.
        max_tokens: most tokens of a batch, counted as rows times the longest row: what the KV cache may hold.
        weight_version: name of the weights that the model holds.
        tick: called between two tokens.
    """

    joins = False

    def __init__(self, model: HFModel, *, max_running: int, max_tokens: int, weight_version: str, tick: Tick) -> None:
        super().__init__(max_running=max_running, weight_version=weight_version)
        self.model, self.max_tokens, self.tick = model, max_tokens, tick
        self._rows: list[GenerationRequest] = []
        self._leave = False

    @property
    def kv_slots(self) -> tuple[int, int]:
        """Rows of the present batch, and tokens of the longest."""
        return len(self.running), max((request.total for request in self.running), default=0)

    def flush(self) -> None:
        """Nothing is kept between batches."""

    def retract(self) -> None:
        """Leave the batch; its requests wait with their sampled tokens, which are computed again."""
        # They wait from now on: a weight update may come before `generate` has returned, and wants that none runs.
        self.waiting.extendleft(request for request in reversed(self._rows) if request in self.running)
        self.running.clear()
        self._rows = []
        self._leave = True

    def step(self) -> list[GenerationRequest]:
        """Run a batch until its requests have ended or others wait; `tick` was told about each token."""
        rows = self._next_rows()
        self._leave = False
        if scored := [request for request in rows if request.logprob_start is not None and not request.ids]:
            self._score(scored)
        self._generate(rows, full=bool(self.waiting))
        self.retract()
        return []

    def _next_rows(self) -> list[GenerationRequest]:
        """The requests of the next batch, in the order in which they came; at least one."""
        rows: list[GenerationRequest] = []
        longest = 0
        while self.waiting and len(rows) < self.max_running:
            first = self.waiting[0]
            longest = max(longest, len(first.prompt) + first.max_new_tokens)
            padded = bool(rows) and first.total != rows[0].total
            if (rows and longest * (len(rows) + 1) > self.max_tokens) or (padded and self.model.reads_padding):
                break
            rows.append(self.waiting.popleft())
        self._rows, self.running = rows, set(rows)
        self.counters.prompt_tokens += sum(request.total for request in rows)
        return rows

    def _score(self, rows: list[GenerationRequest]) -> None:
        for request in rows:
            assert request.logprob_start is not None
            values = self.model.prompt_log_probs(request.prompt)
            request.prompt_log_probs = values[max(0, request.logprob_start - 1) :]

    def _generate(self, rows: list[GenerationRequest], *, full: bool) -> None:
        """One call of `generate`.

        Args:
            rows: the requests, in the order of the batch.
            full: no further request had room in this batch, so that leaving it early frees none before half are done.
        """
        from transformers import LogitsProcessorList, StoppingCriteriaList

        ids, mask = _left_padded(rows, self.model.device)
        left = max(max(1, request.max_new_tokens) - len(request.ids) for request in rows)
        table = RowTable.new(len(rows), self.model.spec.vocab_size)
        for row, request in enumerate(rows):
            table.set(row, request)

        def choose(_: Tensor, logits: Tensor) -> Tensor:
            tokens = self._choose(rows, table, logits)
            logits.fill_(-torch.inf)
            return logits.scatter_(1, tokens[:, None], 0.0)

        def done(_: Tensor, __: Any, **___: Any) -> Tensor:
            going = sum(request.finish is None for request in rows)
            crowded = len(self.waiting) >= max(going, 1) and not (full and 2 * going > len(rows))
            self._leave = self._leave or crowded or not going
            return torch.full((len(rows),), self._leave, device=ids.device)

        self.model.lm.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=left,
            logits_processor=LogitsProcessorList([choose]),
            stopping_criteria=StoppingCriteriaList([done]),
        )

    def _choose(self, rows: list[GenerationRequest], table: RowTable, logits: Tensor) -> Tensor:
        """The next token of each row, 0 for those that have ended."""
        going = [row for row, request in enumerate(rows) if request.finish is None]
        tokens = torch.zeros(len(rows), dtype=torch.int64, device=logits.device)
        if going:
            requests = [rows[row] for row in going]
            counts = np.array([len(request.ids) for request in requests], np.int64)
            drawn = draw(requests, logits[going].float(), table, np.array(going, np.int64), counts, TorchOps())
            tokens[going] = torch.tensor(drawn.ids, device=logits.device)
            self._append(requests, drawn)
        self.counters.steps += 1
        self.counters.computed_tokens += len(rows)
        if not self.tick([rows[row] for row in going]):
            self._leave = True
        return tokens


def _left_padded(rows: list[GenerationRequest], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and attention mask `(rows, longest)`."""
    # [[5, 6, 7], [8]] -> [[5, 6, 7], [0, 0, 8]] and [[1, 1, 1], [0, 0, 1]].
    width = max(request.total for request in rows)
    ids, mask = torch.zeros(len(rows), width, dtype=torch.int64), torch.zeros(len(rows), width, dtype=torch.int64)
    for row, request in enumerate(rows):
        ids[row, width - request.total :] = torch.tensor(request.prompt + request.ids)
        mask[row, width - request.total :] = 1
    return ids.to(device), mask.to(device)
