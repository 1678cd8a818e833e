"""Questions about made-up pictures (`agentrl data pictures`): the last colour or number of the answer."""

from __future__ import annotations

import re
from typing import Any

COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "black", "white")
_ANSWERS = re.compile(rf"\b(?:{'|'.join(COLOURS)}|\d+)\b")


def last_answer(text: str) -> str | None:
    """The last colour or number of a text; None: it has none."""
    found = _ANSWERS.findall(text.lower())
    return found[-1] if found else None


def pictures_gold_problem(ground_truth: Any) -> str | None:
    """Why a ground truth cannot be scored; None: it can."""
    read = last_answer(str(ground_truth))
    return None if read is not None else f"the ground truth {ground_truth!r:.200} is neither a colour nor a number"


def compute_score(solution_str: str, ground_truth: Any) -> float:
    """1.0 if the last colour or number is the ground truth's, else 0.0: `the square is red` against `red` is right."""
    return float(last_answer(solution_str) == last_answer(str(ground_truth)))
