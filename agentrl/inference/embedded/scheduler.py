"""Which requests run, and one step of all of them: place, compute, sample, append, finish."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentrl.inference.embedded import batch
from agentrl.inference.embedded.decoder import Decoder
from agentrl.inference.embedded.request import Finish, GenerationRequest
from agentrl.inference.embedded.sampler import adjust_logits, sample
from agentrl.inference.embedded.slots import SlotTable
from agentrl.inference.embedded.vision_step import with_pictures

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


class Scheduler:
    """Waiting and running requests over one model. Not thread-safe: the engine's thread owns it.

    Args:
        model: the decoder.
        table: the slots.
        max_running: most requests that run together.
        prefill_chunk: most prompt tokens of a step.
        weight_version: name of the weights that the model holds.
    """

    def __init__(
        self, model: Decoder, table: SlotTable, *, max_running: int, prefill_chunk: int, weight_version: str
    ) -> None:
        self.model, self.table = model, table
        self.max_running, self.prefill_chunk, self.weight_version = max_running, prefill_chunk, weight_version
        self.waiting: deque[GenerationRequest] = deque()
        self.running: set[GenerationRequest] = set()
        self.counters = Counters()

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self.waiting or self.running)

    @torch.inference_mode()
    def step(self) -> list[GenerationRequest]:
        """Run one step.

        Returns:
            The requests that got a token or ended; `finish` says which ended.
        """
        # For example one token of each of 20 decoding requests and 2,000 prompt tokens of a new one.
        self._admit()
        active = self.table.active
        if len(active) and (retracted := self.table.reserve(int(self.table.known[active].max()))):
            self._requeue(retracted)
        # Attention in torch runs over all slots up to the last owned one: pack them when many in between are idle.
        elif self.model.ops.wants_bias and len(active) and active[-1] + 1 > 1.5 * len(active) + 2:
            self.table.move_together()
        plan = batch.build(self.table, self.prefill_chunk, self.model.ops, self.model.device)
        if plan is None:
            return []
        logits = self.model.forward(with_pictures(plan.step, self.table, self.model), self.table.cache)
        self.counters.steps += 1
        self.counters.computed_tokens += len(plan.step.ids)
        self.table.computed[plan.slots] += plan.counts
        if plan.scored:
            logits = self._score_prompts(plan, logits)
        return self._sample(plan.sampled, logits) if len(plan.sampled) else []

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

    def retract(self) -> None:
        """Take the slots of all running requests; they wait with their sampled tokens, which are computed again."""
        self._requeue(sorted(self.running, key=lambda r: r.started, reverse=True))
        self.table.flush()

    def _requeue(self, requests: list[GenerationRequest]) -> None:
        """Put requests back at the head of the queue, the last of the list at the front."""
        for request in requests:
            if request.slot >= 0:
                self.table.release(request.slot)
            self.running.discard(request)
            self.waiting.appendleft(request)

    def _admit(self) -> None:
        """Place waiting requests; one that waits for a prefix to be computed lets later ones pass."""
        later: list[GenerationRequest] = []
        while self.waiting and len(self.running) < self.max_running and not self.table.full:
            request = self.waiting.popleft()
            if self.table.place(request):
                self.running.add(request)
                self.counters.cached_tokens += request.cached_tokens
                self.counters.prompt_tokens += request.total
            else:
                later.append(request)
        self.waiting.extendleft(reversed(later))

    def _sample(self, slots: batch.Ints, logits: Tensor) -> list[GenerationRequest]:
        """Sample one token for the owner of each slot and append it."""
        table, version = self.table, self.weight_version
        requests = [owner for slot in slots.tolist() if (owner := table.owners[slot]) is not None]
        counts = table.known[slots] - table.rows.prompts[slots]
        for row in np.flatnonzero(table.rows.adjusts[slots]).tolist():
            request = requests[row]
            adjust_logits(logits[row], request.params, request.ids, request.stop_ids)
        ids, log_probs, all_log_probs = sample(logits, table.rows, slots, counts, self.model.ops)
        tokens, values = ids.tolist(), log_probs.tolist()
        table.tokens[slots, table.known[slots]] = tokens
        table.known[slots] += 1
        if not math.isfinite(sum(values)):  # one check for the whole step: NaN and infinity survive a sum
            self._drop_broken(requests, values)
        for row, (request, token, value) in enumerate(zip(requests, tokens, values, strict=True)):
            if request.finish is not None:
                continue
            if request.max_new_tokens == 0:  # it wanted log-probs of its prompt only
                request.finish = Finish("length")
            else:
                request.add(token, value, version)
                if request.top_logprobs and all_log_probs is not None:
                    request.tops.append(_top(all_log_probs[row], request.top_logprobs))
            if request.check_finished():
                self._end(request)
        self.counters.generated_tokens += len(requests)
        return requests

    def _drop_broken(self, requests: list[GenerationRequest], values: list[float]) -> None:
        """End requests whose log-probs are NaN or infinite: such a token was not sampled from any distribution."""
        for request, value in zip(requests, values, strict=True):
            if not math.isfinite(value):
                request.finish = Finish("abort", message=NOT_FINITE)
                self.table.wipe(request.slot)
                self._end(request)

    def _end(self, request: GenerationRequest) -> None:
        request.latency = time.perf_counter() - request.started
        if request.slot >= 0:
            slot = request.slot
            self.table.known[slot] = min(self.table.known[slot], self.table.computed[slot] + 1)
            self.table.release(slot)
            self.running.discard(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        aborted = request.finish is not None and request.finish.type == "abort"
        self.counters.aborted += aborted
        self.counters.finished += not aborted

    def _score_prompts(self, plan: batch.StepPlan, logits: Tensor) -> Tensor:
        """Take log-probs of prompt tokens (temperature 1) from the first rows; return the rows that sample."""
        # The logits at position i score token i + 1. In a prompt [a, b, c, d], a chunk of 2 tokens that starts at 1
        # gives the log-probs of c and d.
        done = 0
        for slot, first, count in plan.scored:
            owner = self.table.owners[slot]
            assert owner is not None
            assert owner.logprob_start is not None
            targets = owner.prompt[first + 1 : first + count + 1]
            log_probs = torch.log_softmax(logits[done : done + len(targets)], dim=-1)
            wanted = torch.tensor(targets, dtype=torch.int64, device=logits.device)[:, None]
            values: list[float] = log_probs.gather(1, wanted).squeeze(1).tolist()
            owner.prompt_log_probs += values[max(0, owner.logprob_start - first - 1) :]
            done += count
        return logits[done:]


def _top(log_probs: Tensor, count: int) -> list[tuple[float, int]]:
    values, ids = log_probs.topk(min(count, log_probs.shape[0]))
    return list(zip(values.tolist(), ids.tolist(), strict=True))
