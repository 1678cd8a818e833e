r"""Geometry3K: 0.9 for the answer in the last `\boxed{}`, 0.1 for thinking in tags before it, as verl scores it."""

from __future__ import annotations

import re
from typing import Any

from agentrl.rewards.scores import math

_FORM = re.compile(r"<think>.*</think>.*\\boxed\{.*\}.*", re.DOTALL)


def compute_score(solution_str: str, ground_truth: Any, format_score: float = 0.1) -> float:
    r"""`1 - format_score` if the answer is right, and `format_score` for `<think>…</think>` and a `\boxed{}` behind it.

    ::

        "<think>a</think> \boxed{2}" against 2 -> 1.0     "\boxed{2}" -> 0.9     "<think>a</think> \boxed{3}" -> 0.1

    Raises:
        RewardError: as `math.compute_score`.
    """
    formed = float(_FORM.fullmatch(solution_str.strip()) is not None)
    return (1.0 - format_score) * math.compute_score(solution_str, ground_truth) + format_score * formed
