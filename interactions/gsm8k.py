"""A user who checks a GSM8K answer and asks again until it is right."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from agentrl.interfaces import BaseInteraction, check_config
from agentrl.types import InteractionResponse, JsonDict, Message

_NUMBER = re.compile(r"-?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)\.?[0-9]*|\.[0-9]+)(?:/[0-9]+)?")
_GOES_ON = re.compile(r",+[0-9]|[-–—−:][0-9]")
"""Behind a marked number: `1,2`, `7:30` and `10-12` are not their first numbers."""
_RIGHT = "Your answer is correct."
_WRONG = "Your answer is wrong. Check your steps, then answer again."


class Gsm8kInteraction(BaseInteraction):
    """Scores each answer 1 or 0 and continues until one is right or a turn limit of the run ends it.

    Args:
        config: `right` and `wrong` replace the two replies.
    """

    def __init__(self, config: JsonDict) -> None:
        super().__init__(config)
        check_config(config, ("right", "wrong"))
        self._right = str(config.get("right", _RIGHT))
        self._wrong = str(config.get("wrong", _WRONG))
        self._truth: Fraction | None = None
        self._score = 0.0

    async def start_interaction(self, **interaction_kwargs: Any) -> None:
        """Needs `ground_truth`; `query` is accepted but not used."""
        truth = interaction_kwargs.get("ground_truth")
        self._truth = _read_number(f"#### {truth}")
        if truth is None or self._truth is None:
            raise ValueError(f"`interaction_kwargs.ground_truth`: got {truth!r}, wanted a number")

    async def generate_response(self, messages: list[Message]) -> InteractionResponse:
        """Grade the last assistant message."""
        said = next((str(m["content"]) for m in reversed(messages) if m["role"] == "assistant"), "")
        right = _read_number(said) == self._truth
        self._score = float(right)
        return InteractionResponse(right, self._right if right else self._wrong, self._score)

    async def calculate_score(self) -> float:
        """The score of the last answer."""
        return self._score


def _read_number(text: str) -> Fraction | None:
    """The number after the last `####`, else the last number of the text."""
    _, marker, end = text.rpartition("####")
    found = list(_NUMBER.finditer(end))
    if not found or (marker and _GOES_ON.match(end, found[0].end())):
        return None
    number, _, divisor = found[0 if marker else -1][0].partition("/")
    if divisor and not int(divisor):
        return None
    return Fraction(number.replace(",", "").rstrip(".")) / int(divisor or 1)
