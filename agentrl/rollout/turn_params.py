"""What a run adds to the sampling parameters that a loop gives: the turn's token budget and the ids that end a turn."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
        """A token stream begins with a prompt of so many tokens; what follows them counts against the response."""
        self._prompt_length = prompt_length

    def complete(self, prompt_ids: Sequence[int], sampling_params: JsonDict) -> JsonDict:
        """The sampling parameters of one request, with `max_new_tokens` and `stop_token_ids`.

        The budget is the smallest of what is left of the response, `max_tokens_per_turn`, and what the loop itself
        asks for. With `response_length` 512, `max_tokens_per_turn` 300, a prompt of 100 tokens and a context of 400 so
        far, 512 - (400 - 100) = 212 tokens are left: a turn may take 212, at the first request it could take 300. It is
        never 0: a loop that goes on for too long gets one more token, and then the error that says so.

        Args:
            prompt_ids: the whole context; where nothing was started, the first request's is the prompt.
            sampling_params: as in SGLang's `/generate`; `ignore_eos` keeps the model's stop ids out.
        """
        if self._prompt_length is None:
            self._prompt_length = len(prompt_ids)
        left = self._limits.response_length - (len(prompt_ids) - self._prompt_length)
        budgets = (left, self._limits.max_tokens_per_turn, sampling_params.get("max_new_tokens"))
        params = {**sampling_params, "max_new_tokens": max(min(b for b in budgets if b is not None), 1)}
        if not params.get("ignore_eos"):
            params["stop_token_ids"] = sorted({*(params.get("stop_token_ids") or ()), *self._stop_token_ids})
        return params
