"""Who holds which slot of the KV cache, and which tokens it holds: placement, prefix reuse, growth."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentrl.inference.embedded.kv_cache import LENGTH_STEP, KVCache
from agentrl.inference.embedded.request import GenerationRequest
from agentrl.inference.embedded.sampler import RowTable

Ints = NDArray[np.int64]
FIRST_SLOTS = 8
MIN_SHARED = 4
"""A common prefix shorter than this is computed again rather than copied or waited for."""


class SlotTable:
    """Tokens, owners and sampling parameters of all slots.

    A slot without an owner keeps its tokens as prefix cache. `known[i]` tokens are written in `tokens[i]`; the first
    `computed[i]` of them have keys and values. An owner with one token left to compute decodes; with more it prefills.

    Example: slot 0 decodes (known 101, computed 100), slot 1 prefills (known 500, computed 0), slot 2 has no owner and
    caches 80 tokens (known 80, computed 80).

    Args:
        cache: the tensors behind the slots.
        max_slots: most slots, owned and cached ones together.
        max_length: most tokens of a slot.
        budget: bytes that the cache may take; one slot is always allowed.
        reuse: whether requests may use what others computed.
    """

    def __init__(self, cache: KVCache, max_slots: int, max_length: int, budget: int, *, reuse: bool = True) -> None:
        self.cache, self.max_slots, self.max_length, self.budget, self.reuse = (
            cache,
            max_slots,
            max_length,
            budget,
            reuse,
        )
        self.tokens = np.zeros((0, max_length + 1), np.int32)
        self.known = np.zeros(0, np.int64)
        self.computed = np.zeros(0, np.int64)
        self.used = np.zeros(0, np.int64)
        self.stale = np.zeros(0, np.bool_)
        self.owned = np.zeros(0, np.bool_)
        self.owners: list[GenerationRequest | None] = []
        self.rows = RowTable.new(max_slots, cache.spec.vocab_size)
        self._clock = 0
        self.lay_out()

    def lay_out(self) -> None:
        """Allocate the first slots, or all of them where none is shared."""
        slots, length = self.max_slots, self.max_length
        self._resize(*((slots, length) if not self.reuse else (min(slots, FIRST_SLOTS), min(length, LENGTH_STEP))))

    def drop(self) -> None:
        """Forget everything and free it; no slot has an owner."""
        self._resize(0, 0)

    @property
    def active(self) -> Ints:
        """Slots with an owner, in order."""
        return np.flatnonzero(self.owned)

    def slots_for(self, length: int) -> int:
        """How many slots of this length the budget allows."""
        return max(1, min(self.max_slots, self.budget // (self.cache.bytes_per_token * length)))

    @property
    def full(self) -> bool:
        """Whether all slots have owners and the budget allows no more slots."""
        return bool(self.owned.all()) and len(self.owners) >= self.slots_for(self.cache.length)

    def place(self, request: GenerationRequest) -> bool:
        """Find a slot for a request and reuse the longest prefix that is already computed.

        Returns:
            False: no slot is free (`full`), or a running request is computing a prefix that is worth waiting for.
        """
        ids = request.marked
        source, ready = self._longest_prefix(ids, request)
        if source is None:
            return False
        slot = self._choose(source, ready)
        if slot is None:
            return False
        if slot != source and ready:
            self.cache.copy_rows(source, slot, ready)
        self._clock += 1
        self.owners[slot], self.owned[slot], self.used[slot], self.stale[slot] = request, True, self._clock, False
        self.tokens[slot, : len(ids)] = ids
        self.known[slot], self.computed[slot] = len(ids), ready
        self.rows.set(slot, request)
        request.slot, request.cached_tokens = slot, ready
        return True

    def release(self, slot: int) -> None:
        """Take the slot from its owner; its computed tokens stay as prefix cache."""
        owner = self.owners[slot]
        assert owner is not None
        owner.slot = -1
        self.owners[slot], self.owned[slot] = None, False
        self._clock += 1
        self.used[slot] = self._clock
        self.known[slot] = self.computed[slot]  # tokens without keys and values are no use to others
        if self.stale[slot] or not self.reuse:
            self._forget(slot)

    def flush(self) -> None:
        """Forget the prefix cache; slots in use are forgotten when they are released."""
        for slot, owner in enumerate(self.owners):
            if owner is None:
                self._forget(slot)
            else:
                self.stale[slot] = True

    def wipe(self, slot: int) -> None:
        """Forget a slot that holds NaN or infinite numbers, and zero it."""
        self._forget(slot)
        self.stale[slot] = True
        self.cache.clear(slot)

    def move_together(self) -> None:
        """Move owned slots to the front, so that attention covers few slots without an owner."""
        # Owned slots [0, 3, 5] -> [0, 1, 2]: the holes 1 and 2 are filled from the back, 5 -> 1 and 3 -> 2.
        active = self.active
        count = len(active)
        holes = [i for i in range(count) if self.owners[i] is None]
        for hole, slot in zip(holes, reversed(active[active >= count].tolist()), strict=True):
            self._swap(hole, slot)

    def reserve(self, length: int) -> list[GenerationRequest]:
        """Make every slot at least `length` tokens long.

        Returns:
            Requests that lost their slot because fewer of the longer slots fit, the last placed first.
        """
        if length <= self.cache.length:
            return []
        # Double, so that growth is rare; but not if doubling would cost slots. With 6 slots and memory for 8 of 256
        # tokens, a request of 260 tokens gets slots of 384 (5 fit), not of 512 (4 fit).
        doubled = min(self.max_length, max(_round(length), 2 * self.cache.length))
        new = doubled if self.slots_for(doubled) >= len(self.owners) else min(self.max_length, _round(length))
        slots = min(len(self.owners), self.slots_for(new))
        retracted = []
        while len(active := self.active) > slots:
            last = max(active.tolist(), key=lambda slot: int(self.used[slot]))
            owner = self.owners[last]
            assert owner is not None
            self.release(last)
            retracted.append(owner)
        self.move_together()
        self._resize(slots, new)
        return retracted

    def _longest_prefix(self, ids: NDArray[np.int32], request: GenerationRequest) -> tuple[int | None, int]:
        """The slot with the longest computed prefix of the ids and its length; no slot: a running one computes it now.

        Eight rollouts of one prompt of 500 tokens: the first is placed with `common` 0. While it prefills, the other
        seven find common 499 and ready 0, and wait. When it has computed its prompt, they find ready 499 and copy.
        """
        if not self.reuse:
            return 0, 0
        most = len(ids) - 1  # the last token is always computed: its logits are what is sampled from
        if request.logprob_start is not None:
            most = min(most, max(0, request.logprob_start - 1))
        width = min(most, self.tokens.shape[1])
        if width < MIN_SHARED:
            return 0, 0
        # Per slot: index of the first difference, at most `known` (what lies beyond is left over from other requests).
        same = self.tokens[:, :width] == ids[:width]
        common = np.minimum(np.where(same.all(axis=1), width, same.argmin(axis=1)), self.known)
        common[self.stale] = 0
        ready = np.minimum(common, self.computed)
        best = int(ready.argmax())
        if int(common.max()) >= int(ready[best]) + MIN_SHARED:
            return None, 0
        return best, int(ready[best]) if ready[best] >= MIN_SHARED else 0

    def _choose(self, source: int, ready: int) -> int | None:
        """The slot for a request whose prefix of `ready` tokens is in slot `source`."""
        # The next turn of a trajectory continues exactly what an idle slot holds: take that slot, copy nothing. A slot
        # that holds more than the prefix is left to whoever continues it, as long as others are free.
        if self.owners[source] is None and ready and ready == self.computed[source]:
            return source
        idle = ~self.owned
        empty = idle & (self.computed == 0)
        if not empty.any() and len(self.owners) < self.slots_for(self.cache.length):
            self._resize(min(2 * len(self.owners), self.slots_for(self.cache.length)), self.cache.length)
            return self._choose(source, ready)
        if empty.any():
            return int(empty.argmax())
        if not idle.any():
            return None
        return int(np.where(idle, self.used, np.iinfo(np.int64).max).argmin())  # the least recently used

    def _forget(self, slot: int) -> None:
        self.known[slot] = self.computed[slot] = self.used[slot] = 0
        self.stale[slot] = False

    def _swap(self, left: int, right: int) -> None:
        self.cache.swap(left, right, int(max(self.computed[left], self.computed[right])))
        for array in (self.tokens, self.known, self.computed, self.used, self.stale, self.owned):
            array[[left, right]] = array[[right, left]]
        self.rows.swap(left, right)
        self.owners[left], self.owners[right] = self.owners[right], self.owners[left]
        for slot in (left, right):
            owner = self.owners[slot]
            if owner is not None:
                owner.slot = slot

    def _resize(self, slots: int, length: int) -> None:
        self.cache.resize(slots, length)
        # Ids take little memory beside keys and values, so their rows always have the full length: a prompt is written
        # first, then the cache grows to it.
        keep = min(slots, len(self.owners))
        tokens = np.zeros((slots, self.max_length + 1), np.int32)
        tokens[:keep] = self.tokens[:keep]
        self.tokens = tokens
        self.known, self.computed, self.used = (_fit(a, slots) for a in (self.known, self.computed, self.used))
        self.stale, self.owned = (np.append(a, np.zeros(slots, np.bool_))[:slots] for a in (self.stale, self.owned))
        self.owners = (self.owners + [None] * slots)[:slots]


def _fit(array: Ints, size: int) -> Ints:
    return np.append(array[:size], np.zeros(max(0, size - len(array)), np.int64))


def _round(length: int) -> int:
    return -(-length // LENGTH_STEP) * LENGTH_STEP
