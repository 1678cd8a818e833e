r"""Mathematics: the content of the last `\boxed{}` against the ground truth, as values (`0.5` equals `\frac{1}{2}`).

Equal texts and equal numbers are recognised here. The rest is decided by the math-verify library, which parses LaTeX
and may take very long, so it runs in its own process (`math_process`).
"""

from __future__ import annotations

import functools
from typing import Any

from agentrl.rewards.scores.math_process import Comparer
from agentrl.rewards.scores.numbers import to_number

_NOISE = ("\\left", "\\right", "\\!", "\\,", "\\;", "\\ ", "\\$", "$", "\\%", "%", "\\displaystyle")


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{…}` or `\fbox{…}` with balanced braces, or None."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    opening = text.index("{", start)
    depth = 0
    for place in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[opening + 1 : place]
    return None


def normalize(answer: str) -> str:
    """The text of an answer without spaces, layout commands, `$` and `%`."""
    for noise in _NOISE:
        answer = answer.replace(noise, "")
    answer = answer.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    return "".join(answer.split()).rstrip(".")


def compute_score(solution_str: str, ground_truth: Any, format_score: float = 0.0, score: float = 1.0) -> float:
    r"""`score` if the last `\boxed{}` equals the ground truth, `format_score` if it does not, 0 without one.

    A comparison that takes more than a few seconds counts as not equal.

    Raises:
        RewardError: the comparison failed for another reason.
    """
    answer = last_boxed(solution_str)
    if answer is None:
        return 0.0
    gold = str(ground_truth)
    gold = last_boxed(gold) or gold
    return score if _equal(answer, gold) else format_score


def _equal(answer: str, gold: str) -> bool:
    given, wanted = normalize(answer), normalize(gold)
    if not wanted:
        return False
    if given == wanted:
        return True
    numbers = to_number(given), to_number(wanted)
    if None not in numbers:
        return numbers[0] == numbers[1]
    return _comparer().equal(answer, gold)


@functools.cache
def _comparer() -> Comparer:
    return Comparer()
