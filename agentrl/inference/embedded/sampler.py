"""From logits to sampled ids and log-probs, for all rows of a step at once.

A token is found by inverting the cumulative distribution at a uniform number, which costs a tenth of
`torch.multinomial`: with probabilities [0.2, 0.5, 0.3] the number 0.6 picks token 1. The number is a hash of the
request's key and the token's index in the answer, so a request with a seed gets the same draws in any batch.

Log-probs are those of the logits divided by the temperature, before top_k, top_p and min_p; greedy rows report
temperature 1 (as SGLang does).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.inference.embedded.ops import TorchOps, invert
from agentrl.inference.embedded.request import GenerationRequest
from agentrl.inference.embedded.sampling_params import SamplingParams

Keys = NDArray[np.uint64]
MAX_SORT = 512
_MASK = 2**64 - 1


@dataclass(slots=True)
class RowTable:
    """Sampling parameters of all slots as arrays, so that a step picks its rows without a Python loop."""

    temperature: NDArray[np.float32]
    greedy: NDArray[np.bool_]
    top_p: NDArray[np.float32]
    top_k: NDArray[np.int64]
    min_p: NDArray[np.float32]
    truncates: NDArray[np.bool_]
    keys: Keys
    adjusts: NDArray[np.bool_]
    """Whether logits may need work before sampling: see `adjust_logits`."""
    scores: NDArray[np.bool_]
    """Whether log-probs of the prompt or of the most likely tokens are wanted."""
    prompts: NDArray[np.int64]
    """Tokens of the prompt."""
    vocab: int

    @classmethod
    def new(cls, slots: int, vocab: int) -> RowTable:
        """A table for this many slots over a vocabulary of this size."""
        floats, flags = np.ones(slots, np.float32), np.zeros(slots, np.bool_)
        return cls(
            temperature=floats,
            greedy=flags,
            top_p=floats.copy(),
            top_k=np.zeros(slots, np.int64),
            min_p=floats.copy(),
            truncates=flags.copy(),
            keys=np.zeros(slots, np.uint64),
            adjusts=flags.copy(),
            scores=flags.copy(),
            prompts=np.zeros(slots, np.int64),
            vocab=vocab,
        )

    def set(self, slot: int, request: GenerationRequest) -> None:
        """Write the parameters of the request that takes a slot."""
        params = request.params
        self.temperature[slot] = 1.0 if params.greedy else params.temperature
        self.greedy[slot] = params.greedy
        self.top_p[slot] = params.top_p
        self.top_k[slot] = params.top_k if 0 < params.top_k < self.vocab else self.vocab
        self.min_p[slot] = params.min_p
        self.truncates[slot] = params.truncates
        self.keys[slot] = request.key
        self.adjusts[slot] = params.changes_logits
        self.scores[slot] = request.logprob_start is not None or request.top_logprobs > 0
        self.prompts[slot] = len(request.prompt)

    def swap(self, left: int, right: int) -> None:
        """Exchange two slots."""
        for field in fields(self):
            column = getattr(self, field.name)
            if isinstance(column, np.ndarray):
                column[[left, right]] = column[[right, left]]


def uniforms(keys: Keys, counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """Uniform numbers in [0, 1) with 24 bits: splitmix64 of each key at each index (Steele et al., 2014)."""
    z = keys + (counts.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    top: NDArray[np.float32] = (z >> np.uint64(40)).astype(np.float32)
    return top * np.float32(2.0**-24)


def seed_key(seed: int, number: int) -> int:
    """The key of sample `number` of a request with this seed."""
    z = (seed + number * 0xD1342543DE82EF95) & _MASK
    z = ((z ^ (z >> 32)) * 0xD6E8FEB86659FD93) & _MASK
    return (z ^ (z >> 32)) & _MASK


def sample(
    logits: Tensor, table: RowTable, slots: NDArray[np.int64], counts: NDArray[np.int64], ops: TorchOps
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sample one token per row.

    Args:
        logits: float32 `(rows, vocab)`.
        table: parameters of all slots.
        slots: slot of each row.
        counts: tokens that each row's request has sampled so far.
        ops: the operations to use.

    Returns:
        ids `(rows,)`, their log-probs `(rows,)`, and log-probs of all tokens `(rows, vocab)` if any row needs them.
    """
    device = logits.device
    temperature = torch.from_numpy(table.temperature[slots]).to(device)
    greedy = torch.from_numpy(table.greedy[slots]).to(device)
    u = torch.from_numpy(uniforms(table.keys[slots], counts)).to(device)
    truncated = np.flatnonzero(table.truncates[slots])
    if not len(truncated) and not table.scores[slots].any():
        return (*ops.sample(logits, temperature, greedy, u), None)
    log_probs = torch.log_softmax(logits / temperature[:, None], dim=-1)
    ids = torch.where(greedy, log_probs.argmax(dim=-1), invert(log_probs.exp(), u))
    if len(truncated):
        index = torch.from_numpy(truncated).to(device)
        ids[index] = _truncated(log_probs[index].exp(), u[index], table, slots[truncated])
    return ids, log_probs.gather(1, ids[:, None]).squeeze(1), log_probs


def _truncated(probs: Tensor, u: Tensor, table: RowTable, slots: NDArray[np.int64]) -> Tensor:
    """Sample from the tokens that top_k, top_p and min_p keep; the most likely one is always kept."""
    top_k = torch.from_numpy(table.top_k[slots]).to(probs.device)[:, None]
    top_p = torch.from_numpy(table.top_p[slots]).to(probs.device)[:, None]
    min_p = torch.from_numpy(table.min_p[slots]).to(probs.device)[:, None]
    vocab = probs.shape[1]
    width = min(vocab, MAX_SORT)
    while True:
        # Sorting a whole vocabulary is slow: sort the 512 most likely tokens and widen only if a row keeps even the
        # last of them. `before` is the probability of all more likely tokens: with top_p 0.9, [0.6, 0.25, 0.1, 0.05]
        # has before [0, 0.6, 0.85, 0.95] and keeps the first three.
        ordered, order = probs.topk(width, dim=-1)
        before = ordered.cumsum(dim=-1) - ordered
        rank = torch.arange(width, device=probs.device)
        keep = (rank < top_k) & (before < top_p) & (ordered >= min_p * ordered[:, :1])
        if width == vocab or not bool(keep[:, -1].any()):
            break
        width = min(vocab, width * 8)
    keep[:, 0] = True
    picked = invert(ordered * keep, u)
    return order.gather(1, picked[:, None]).squeeze(1)


def adjust_logits(logits: Tensor, params: SamplingParams, sampled: list[int], stops: frozenset[int]) -> None:
    """Apply penalties, biases and `min_new_tokens` to one row `(vocab,)`, in place.

    Penalties apply to sampled tokens only, not to the prompt.
    """
    if sampled:
        ids, times = torch.unique(torch.tensor(sampled, device=logits.device), return_counts=True)
        picked = logits[ids]
        if params.repetition_penalty != 1:
            factor = params.repetition_penalty
            picked = torch.where(picked > 0, picked / factor, picked * factor)
        logits[ids] = picked - params.frequency_penalty * times - params.presence_penalty
    for token, bias in params.logit_bias:
        logits[token] += bias
    if len(sampled) < params.min_new_tokens and stops:
        logits[torch.tensor(sorted(stops), device=logits.device)] = -torch.inf
