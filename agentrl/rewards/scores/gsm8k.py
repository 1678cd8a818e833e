"""GSM8K: the last `#### number` (strict), or the last number in the text (flexible), against the ground truth."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Literal

from agentrl.errors import RewardError
from agentrl.rewards.scores.numbers import NUMBER, last_number, to_number

MARKED_NUMBER = re.compile(r"####[ \t]*(" + NUMBER + r")(?![.,]?[\w/]|,+\d|[-–—−:]\d)")
"""A marker and the number after it. `3/4`, `1.2.3`, `1,2`, `7:30` and `10-12` do not count as their first numbers."""


def extract_answer(solution_str: str, method: Literal["strict", "flexible"] = "strict") -> Decimal | None:
    """The answer in a solution; None if it has none."""
    if method == "flexible":
        return last_number(solution_str)
    if method != "strict":
        raise RewardError(f"method: got {method!r}, wanted 'strict' or 'flexible'")
    found = MARKED_NUMBER.findall(solution_str)
    return to_number(found[-1]) if found else None


def gsm8k_gold_problem(ground_truth: Any) -> str | None:
    """Why a ground truth cannot be scored; None: it can."""
    return f"the ground truth {ground_truth!r:.200} is not a number" if _gold(ground_truth) is None else None


def compute_score(
    solution_str: str,
    ground_truth: Any,
    method: Literal["strict", "flexible"] = "strict",
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    """`score` for the right number, `format_score` for a well-formed wrong one, else 0.

    Args:
        solution_str: what the assistant wrote.
        ground_truth: the right number, or a GSM8K solution that ends with `#### number`.
        method: where to look for the answer.
        format_score: the score of a wrong answer in the right form.
        score: the score of the right answer.

    Raises:
        RewardError: the ground truth is not a number.
    """
    wanted = _gold(ground_truth)
    if wanted is None:
        raise RewardError(gsm8k_gold_problem(ground_truth))
    given = extract_answer(solution_str, method)
    if given is None:
        return 0.0
    return score if given == wanted else format_score


def _gold(ground_truth: Any) -> Decimal | None:
    return to_number(str(ground_truth).rpartition("####")[2])
