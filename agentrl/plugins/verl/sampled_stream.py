"""What the engine sampled for a loop written for verl, and the proof that the loop's mask marks nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrl.errors import TokenStreamError
from agentrl.trajectory import NO_VERSION
from agentrl.types import GenerationOutput

Turn = tuple[int, GenerationOutput]
"""The place of a turn's first token among all ids of its request and answer, and the answer."""


@dataclass(slots=True)
class Stream:
    """The ids of requests that continue each other, and which of them were sampled."""

    prompt_length: int
    """Length of the first request."""
    ids: list[int]
    turns: list[Turn] = field(default_factory=list)

    def add(self, prompt_ids: list[int], output: GenerationOutput) -> None:
        """The next request and what was sampled for it."""
        self.turns.append((len(prompt_ids), output))
        self.ids = [*prompt_ids, *output.token_ids]


class SampledStreams:
    """Everything that one trajectory's loop asked for: a stream per conversation that it played."""

    def __init__(self) -> None:
        self._streams: list[Stream] = []

    def of_request(self, prompt_ids: list[int]) -> tuple[Stream, bool]:
        """The stream that a request continues, else a new one; and whether it is the stream of the last request."""
        for stream in reversed(self._streams):
            if prompt_ids[: len(stream.ids)] == stream.ids:
                follows = stream is self._streams[-1]
                self._streams.remove(stream)
                self._streams.append(stream)
                return stream, follows
        new = Stream(
            len(prompt_ids), prompt_ids, max((_shared(old, prompt_ids) for old in self._streams), key=len, default=[])
        )
        self._streams.append(new)
        return new, False

    def prove(self, prompt_ids: Sequence[int], response_ids: Sequence[int], mask: Sequence[int]) -> Proven:
        """Find each response token among what was sampled.

        ::

            the engine answered [1, 2] with [5, 6], and [1, 2, 5, 6, 9] with [7]; the loop returned prompt [1, 2] and

            response  5 6 9 7
            mask      1 1 0 1        right
            mask      1 1 1 1        an error: no engine sampled the 9

        Args:
            prompt_ids: of the loop's output.
            response_ids: of it.
            mask: of it; a loop may write 0 for a sampled token that it does not want trained.

        Raises:
            TokenStreamError: the mask is 1 for a token that was not sampled there.
        """
        whole = [*prompt_ids, *response_ids]
        proofs = [_covered(stream, whole, len(prompt_ids)) for stream in self._streams]
        best = max(proofs, key=lambda proof: sum(map(bool, proof.mask)), default=Proven.of(len(response_ids)))
        for place, (wanted, sampled) in enumerate(zip(mask, best.mask, strict=True)):
            if wanted and not sampled:
                raise TokenStreamError(
                    f"response_mask is 1 for token {place} of the response (id {response_ids[place]}), which no engine "
                    "sampled there: wanted 0 for what a tool, a user or the chat template wrote, and sampled ids as "
                    "`generate` returned them, not decoded and encoded again"
                )
        return best


@dataclass(slots=True)
class Proven:
    """For each response token, what the engine said about it."""

    mask: list[int]
    """1 where it was sampled."""
    log_probs: list[float]
    versions: list[int]
    finish_reasons: list[str] = field(default_factory=list)
    """Of the turns whose tokens are in the response; a turn that the loop cut counts as `length`."""

    @classmethod
    def of(cls, count: int) -> Proven:
        """Nothing was sampled."""
        return cls([0] * count, [0.0] * count, [NO_VERSION] * count)


def _covered(stream: Stream, whole: Sequence[int], prompt_length: int) -> Proven:
    """The part of a loop's output that repeats a stream, as far as they agree."""
    agree = _common_prefix(stream.ids, whole)
    proof = Proven.of(len(whole) - prompt_length)
    for start, output in stream.turns:
        first, end = max(start, prompt_length), min(start + len(output.token_ids), agree)
        if first >= end:
            continue
        here, there = slice(first - prompt_length, end - prompt_length), slice(first - start, end - start)
        proof.mask[here] = [1] * (end - first)
        proof.log_probs[here] = output.log_probs[there]
        proof.versions[here] = output.weight_versions[there]
        proof.finish_reasons.append("length" if end < start + len(output.token_ids) else output.finish_reason)
    return proof


def _shared(old: Stream, prompt_ids: list[int]) -> list[Turn]:
    """The turns of another stream that a request's ids begin with: two branches of one conversation."""
    agree = _common_prefix(old.ids, prompt_ids)
    return [(start, output) for start, output in old.turns if start + len(output.token_ids) <= agree]


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size
    return next(place for place in range(size) if left[place] != right[place])
