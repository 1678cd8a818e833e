"""Which of the sampled tokens are trained on (`multi_turn.trainable_turns`, `mask_tool_call_args`, `state_masking`).

There are two masks: `mask` marks sampled tokens and never changes; `loss_mask` marks the tokens that are trained on.
This module removes ones from the second. With `final_answer`, a call, its result and an answer::

    response   c a l l . r r r o k .
    mask       1 1 1 1 1 0 0 0 1 1 1
    loss_mask  0 0 0 0 0 0 0 0 1 1 1
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentrl.rollout.records import MaskArray, TokenArrays
from agentrl.types import ParsedTurn, ToolCall

Decode = Callable[[Sequence[int]], str]
Parse = Callable[[str], ParsedTurn]
Span = tuple[int, int]
_MOST_TRIES = 256
"""At most this many braces of a turn are tried as the start of a call's arguments."""


@dataclass(frozen=True, slots=True)
class Training:
    """Chooses the tokens of a trajectory that are trained on.

    Args:
        turns: `all_assistant`, `last_assistant` (the last turn), or `final_answer` (the last turn if it calls no tool,
            or one of `stop_tools`, with which such agents answer).
        mask_arguments: exclude the arguments of tool calls.
        markers: exclude what the model itself wrote from the first marker to the second, both included: such text is
            the environment's, and a model that makes up its own must not learn to.
    """

    turns: str = "all_assistant"
    mask_arguments: bool = False
    markers: tuple[str, str] | None = None

    def narrow(
        self, tokens: TokenArrays, decode: Decode, parse: Parse | None, *, answered_by_tool: bool = False
    ) -> TokenArrays:
        """The tokens with a loss mask whose ones are a subset of the mask's.

        Args:
            tokens: of a finished trajectory.
            decode: sampled ids to text, without the stop id at their end.
            parse: finds the calls in a turn's text; None: turns hold no calls.
            answered_by_tool: a stop tool ended the trajectory, so that the last turn is an answer.
        """
        if self.turns == "all_assistant" and not self.mask_arguments and self.markers is None:
            return tokens
        loss_mask: MaskArray = np.zeros_like(tokens.mask)
        for start, end in self._trained_turns(tokens, decode, None if answered_by_tool else parse):
            loss_mask[start:end] = 1
            ids = tokens.response[start:end].tolist()
            for span in self._left_out(decode(ids), parse):
                first, last = token_span(ids, span, decode)
                loss_mask[start + first : start + last] = 0
        return replace(tokens, loss_mask=loss_mask & tokens.loss_mask)

    def _left_out(self, text: str, parse: Parse | None) -> Iterator[Span]:
        """The characters of a turn that are not trained on."""
        if self.mask_arguments and parse is not None:
            yield from argument_spans(text, parse(text))
        if self.markers is not None:
            start, end = map(re.escape, self.markers)
            for block in re.finditer(f"{start}.*?{end}", text, re.DOTALL):
                yield block.span()

    def _trained_turns(self, tokens: TokenArrays, decode: Decode, parse: Parse | None) -> list[Span]:
        turns = list(sampled_turns(tokens.mask))
        if self.turns == "all_assistant":
            return turns
        last = turns[-1:]
        if self.turns == "final_answer" and parse is not None:
            return [turn for turn in last if not parse(decode(tokens.response[slice(*turn)].tolist())).wants_tools]
        return last


def sampled_turns(mask: MaskArray) -> Iterator[Span]:
    """Start and end of each run of ones."""
    edges = np.flatnonzero(np.diff(mask, prepend=0, append=0))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def argument_spans(text: str, turn: ParsedTurn) -> list[Span]:
    """Where the arguments of a turn's calls are in its text.

    If the parser does not say, a call's arguments are the JSON value in the text that equals them. If no value does,
    everything after the call's name counts as arguments.
    """
    spans: list[Span] = []
    taken = 0
    for call in turn.tool_calls:
        span = call.arguments_span or _find_arguments(text, call, taken)
        spans.append(span)
        taken = span[1]
    return spans


def token_span(ids: Sequence[int], span: Span, decode: Decode) -> Span:
    """The ids of a turn that hold characters of a span, even if only in part.

    Args:
        ids: the turn.
        span: characters `[start, end)` of its text.
        decode: ids to text.
    """
    start, end = span

    def chars(count: int) -> int:
        return len(decode(ids[:count]).rstrip("�"))  # ids that end inside a character decode to this sign

    # Ids `he`, `llo {`, `"x"`, `}` and the span (6, 11) of `{"x"}`: the decoded prefixes have lengths 0, 2, 7, 10, 11.
    # The second id holds character 6, so the answer is (1, 4). Bisection decodes only a few of the prefixes.
    places = range(len(ids) + 1)
    first = bisect_left(places, True, key=lambda k: chars(k) >= start or (k < len(ids) and chars(k + 1) > start))
    return first, max(first, bisect_left(places, True, key=lambda k: chars(k) >= end))


def _find_arguments(text: str, call: ToolCall, start: int) -> Span:
    decoder = json.JSONDecoder(strict=False)
    place = start
    for _ in range(_MOST_TRIES):
        place = text.find("{", place)
        if place < 0:
            break
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            value, end = None, place
        if value == call.arguments:
            return place, end
        place += 1
    named = text.find(call.name, start)
    return (named + len(call.name) if named >= 0 else start), len(text)
