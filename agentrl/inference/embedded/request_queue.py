"""Requests that wait and run, the next token of each, and what happens to them when they end."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from agentrl.inference.embedded.batch import Ints
from agentrl.inference.embedded.ops import TorchOps
from agentrl.inference.embedded.request import Finish, GenerationRequest
from agentrl.inference.embedded.sampler import RowTable, adjust_logits, sample

NOT_FINITE = "the model's log-probs are not finite"


@dataclass(slots=True)
class Counters:
    """Totals since the start, for the metrics page."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    computed_tokens: int = 0
    steps: int = 0


class RequestQueue:
    """Waiting and running requests, and what happens to each when it ends. The engine's thread owns it.

    Args:
        max_running: most requests that run together.
        weight_version: name of the weights that the model holds.
    """

    joins = True
    """A waiting request joins those that run; False: it may have to wait for some of them to end."""

    def __init__(self, *, max_running: int, weight_version: str) -> None:
        self.max_running, self.weight_version = max_running, weight_version
        self.waiting: deque[GenerationRequest] = deque()
        self.running: set[GenerationRequest] = set()
        self.counters = Counters()

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self.waiting or self.running)

    def drop_cache(self) -> None:
        """Give the memory of keys and values back; no request runs."""

    def lay_out_cache(self) -> None:
        """Take it again."""

    def abort(self, rid: str | None, message: str) -> list[GenerationRequest]:
        """End the requests whose id starts with `rid` (None: all), keeping what they have sampled."""
        found = [r for r in (*self.waiting, *self.running) if rid is None or r.rid.startswith(rid)]
        return [ended for request in found for ended in self.abort_one(request, message)]

    def abort_one(self, request: GenerationRequest, message: str) -> list[GenerationRequest]:
        """End one request; returns it, or nothing when it has ended already."""
        if request.finish is not None:
            return []
        request.finish = Finish("abort", message=message)
        self._end(request)
        return [request]

    def _append(self, requests: list[GenerationRequest], drawn: Drawn) -> None:
        """Give each request its token, and end those that it ends."""
        if not math.isfinite(sum(drawn.log_probs)):  # one check for the whole step: NaN and infinity survive a sum
            self._drop_broken(requests, drawn.log_probs)
        for row, (request, token, value) in enumerate(zip(requests, drawn.ids, drawn.log_probs, strict=True)):
            if request.finish is not None:
                continue
            if request.max_new_tokens == 0:  # it wanted log-probs of its prompt only
                request.finish = Finish("length")
            else:
                request.add(token, value, self.weight_version)
                if request.top_logprobs and drawn.all_log_probs is not None:
                    request.tops.append(_top(drawn.all_log_probs[row], request.top_logprobs))
            if request.check_finished():
                self._end(request)
        self.counters.generated_tokens += len(requests)

    def _drop_broken(self, requests: list[GenerationRequest], values: list[float]) -> None:
        """End requests whose log-probs are NaN or infinite: such a token was not sampled from any distribution."""
        for request, value in zip(requests, values, strict=True):
            if not math.isfinite(value):
                request.finish = Finish("abort", message=NOT_FINITE)
                self._end(request, broken=True)

    def _end(self, request: GenerationRequest, *, broken: bool = False) -> None:
        """Take a request out; `broken`: nothing that was computed for it may be used again."""
        request.latency = time.perf_counter() - request.started
        if request in self.running:
            self.running.discard(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        aborted = request.finish is not None and request.finish.type == "abort"
        self.counters.aborted += aborted
        self.counters.finished += not aborted


@dataclass(slots=True)
class Drawn:
    """The next token of each row."""

    ids: list[int]
    log_probs: list[float]
    all_log_probs: Tensor | None
    """`(rows, vocab)` if any row needs them."""


def draw(
    requests: list[GenerationRequest],
    logits: Tensor,
    rows: RowTable,
    slots: Ints,
    counts: Ints,
    ops: TorchOps,
) -> Drawn:
    """Sample the next token of each request.

    Args:
        requests: one per row of the logits.
        logits: float32 `(rows, vocab)`; penalties are applied in place.
        rows: the sampling parameters of all slots.
        slots: slot of each row.
        counts: tokens that each request has sampled so far.
        ops: the operations to use.
    """
    for row in np.flatnonzero(rows.adjusts[slots]).tolist():
        request = requests[row]
        adjust_logits(logits[row], request.params, request.ids, request.stop_ids)
    ids, log_probs, all_log_probs = sample(logits, rows, slots, counts, ops)
    return Drawn(ids.tolist(), log_probs.tolist(), all_log_probs)


def _top(log_probs: Tensor, count: int) -> list[tuple[float, int]]:
    values, ids = log_probs.topk(min(count, log_probs.shape[0]))
    return list(zip(values.tolist(), ids.tolist(), strict=True))
