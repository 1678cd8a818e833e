"""Which requests run, and one step of all of them: place, compute, sample, append, finish."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.inference.embedded import batch
from agentrl.inference.embedded.decoder import Decoder
from agentrl.inference.embedded.request import GenerationRequest
from agentrl.inference.embedded.request_queue import RequestQueue, draw
from agentrl.inference.embedded.slots import SlotTable
from agentrl.inference.embedded.vision_step import with_pictures


class Scheduler(RequestQueue):
    """Requests over one decoder and its slots. Not thread-safe: the engine's thread owns it.

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
        super().__init__(max_running=max_running, weight_version=weight_version)
        self.model, self.table, self.prefill_chunk = model, table, prefill_chunk

    @property
    def kv_slots(self) -> tuple[int, int]:
        """Allocated slots, and tokens of each."""
        return self.table.cache.slots, self.table.cache.length

    def flush(self) -> None:
        """Forget the prefix cache."""
        self.table.flush()

    def drop_cache(self) -> None:
        """Forget the prefix cache and give its memory back; no request runs."""
        self.table.drop()

    def lay_out_cache(self) -> None:
        """Take the memory of an empty cache."""
        self.table.lay_out()

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
        table = self.table
        requests = [owner for slot in slots.tolist() if (owner := table.owners[slot]) is not None]
        counts = table.known[slots] - table.rows.prompts[slots]
        drawn = draw(requests, logits, table.rows, slots, counts, self.model.ops)
        table.tokens[slots, table.known[slots]] = drawn.ids
        table.known[slots] += 1
        self._append(requests, drawn)
        return requests

    def _end(self, request: GenerationRequest, *, broken: bool = False) -> None:
        if request.slot >= 0:
            slot = request.slot
            if broken:
                self.table.wipe(slot)
            self.table.known[slot] = min(self.table.known[slot], self.table.computed[slot] + 1)
            self.table.release(slot)
        super()._end(request)

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
