"""What a loop gives `generate`, and what of it a run accepts."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from agentrl.errors import PluginError
from agentrl.rollout.turn_params import TurnParams
from agentrl.types import LoopLimits


def complete(**params: Any) -> dict[str, Any]:
    limits = LoopLimits(prompt_length=8, response_length=512, max_tokens_per_turn=300)
    return TurnParams(limits, frozenset({2})).complete([1] * 5, params)


@pytest.mark.parametrize(
    ("params", "budget", "stops"),
    [
        ({}, 300, [2]),
        ({"max_new_tokens": None, "stop_token_ids": None}, 300, [2]),
        ({"max_new_tokens": -5, "stop_token_ids": (9,)}, 1, [2, 9]),
        ({"max_new_tokens": np.int64(7), "stop_token_ids": np.array([9, 4])}, 7, [2, 4, 9]),
        ({"max_new_tokens": 0, "stop_token_ids": {9}, "ignore_eos": True}, 1, [9]),
    ],
)
def test_budget_and_stop_ids(params: dict[str, Any], budget: int, stops: Any) -> None:
    completed = complete(**params)
    assert (completed["max_new_tokens"], completed["stop_token_ids"]) == (budget, stops)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("max_new_tokens", "10", "got '10', wanted a whole number"),
        ("max_new_tokens", 10.5, "got 10.5, wanted a whole number"),
        ("max_new_tokens", True, "got True, wanted a whole number"),
        ("stop_token_ids", 7, "got 7, wanted a list of token ids"),
        ("stop_token_ids", "ab", "got 'ab', wanted a list of token ids"),
        ("stop_token_ids", [None], "got [None], wanted a list of token ids"),
    ],
)
def test_another_type_is_refused_by_name(name: str, value: Any, says: str) -> None:
    with pytest.raises(PluginError, match=re.escape(f"sampling parameter {name}: {says}")):
        complete(**{name: value})
