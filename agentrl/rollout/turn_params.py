"""What a run adds to a loop's sampling parameters: the turn's token budget and the ids that end a turn."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, SupportsIndex

from agentrl.errors import PluginError, repr_of
from agentrl.types import JsonDict, LoopLimits


class TurnParams:
    """Completes the requests of one trajectory. `Session` uses it, and so do the contexts of `agentrl.testing`.

    Args:
        limits: of the conversation.
        stop_token_ids: the model's and its template's.
    """

    def __init__(self, limits: LoopLimits, stop_token_ids: Collection[int]) -> None:
        self._limits = limits
        self._stop_token_ids = stop_token_ids
        self._prompt_length: int | None = None

    def start(self, prompt_length: int) -> None:
        """A token stream begins with a prompt of this length; tokens after it count against the response."""
        self._prompt_length = prompt_length

    def complete(self, prompt_ids: Sequence[int], sampling_params: JsonDict) -> JsonDict:
        """The sampling parameters of one request, with `max_new_tokens` and `stop_token_ids`.

        The budget is the smallest of the rest of the response, `max_tokens_per_turn`, and the loop's own
        `max_new_tokens`. With `response_length` 512, `max_tokens_per_turn` 300, a prompt of 100 tokens and a context of
        400 so far, 512 - (400 - 100) = 212 tokens are left, so this turn may take 212; the first one could take 300. It
        is never 0: a loop that continues for too long gets one more token, and then an error that says so.

        Args:
            prompt_ids: the whole context; if `start` was not called, that of the first request is the prompt.
            sampling_params: as in SGLang's `/generate`; with `ignore_eos` the model's stop ids are not added.

        Raises:
            PluginError: `max_new_tokens` or `stop_token_ids` has another type.
        """
        _check(sampling_params)
        if self._prompt_length is None:
            self._prompt_length = len(prompt_ids)
        left = self._limits.response_length - (len(prompt_ids) - self._prompt_length)
        budgets = (left, self._limits.max_tokens_per_turn, sampling_params.get("max_new_tokens"))
        params = {**sampling_params, "max_new_tokens": max(min(int(b) for b in budgets if b is not None), 1)}
        own, stops = params.get("stop_token_ids"), () if params.get("ignore_eos") else self._stop_token_ids
        if own is not None or stops:
            params["stop_token_ids"] = sorted({*(() if own is None else map(int, own)), *stops})
        return params


def _check(params: JsonDict) -> None:
    """Refuse a loop's values that would be compared or sent as what they are not: `"10"`, `10.5`, one id for a list."""
    most = params.get("max_new_tokens")
    if most is not None and not _is_whole(most):
        raise PluginError(f"sampling parameter max_new_tokens: got {repr_of(most)}, wanted a whole number")
    stops = params.get("stop_token_ids")
    if stops is not None and (
        isinstance(stops, str) or not isinstance(stops, Collection) or not all(map(_is_whole, stops))
    ):
        raise PluginError(f"sampling parameter stop_token_ids: got {repr_of(stops)}, wanted a list of token ids")


def _is_whole(value: Any) -> bool:
    return isinstance(value, SupportsIndex) and not isinstance(value, bool)
