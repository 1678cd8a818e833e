r"""Mathematics: the content of the last `\boxed{}` against the ground truth, as values (`0.5` equals `\frac{1}{2}`).

The structure of an answer (`math_structure`), its numbers, units and words (`math_text`) are compared here. Expressions
that are no plain numbers are decided by computer algebra, which may take very long, so it runs in other processes
(`math_process`). docs/rewards.md has a table of what equals what.
"""

from __future__ import annotations

import functools
from typing import Any

from agentrl.boxed import last_boxed
from agentrl.reported import finite_number_of
from agentrl.rewards.scores.gold_texts import container_as_text, none_as_text
from agentrl.rewards.scores.math_compare import same_answer, undecided
from agentrl.rewards.scores.math_layout import clean
from agentrl.rewards.scores.math_process import Comparer
from agentrl.rewards.scores.math_text import squeeze


def math_gold_problem(ground_truth: Any) -> str | None:
    """Why a ground truth cannot be scored; None: it can."""
    if isinstance(ground_truth, bool) or not (
        isinstance(ground_truth, str) or finite_number_of(ground_truth) is not None
    ):
        return f"the ground truth {ground_truth!r:.200} is neither text nor a number"
    boxed = last_boxed(str(ground_truth))
    if not squeeze(clean(str(ground_truth) if boxed is None else boxed)):
        return f"the ground truth {ground_truth!r:.200} holds no answer"
    return none_as_text(ground_truth) or container_as_text(ground_truth, "one answer as text")


def compute_score(solution_str: str, ground_truth: Any, format_score: float = 0.0, score: float = 1.0) -> float:
    r"""`score` if the last `\boxed{}` equals the ground truth, `format_score` if it does not, 0 without one.

    An answer that cannot be decided within two seconds of processor time counts as not equal.

    Raises:
        RewardError: the ground truth itself cannot be read within that time, or no process can be started.
    """
    answer = last_boxed(solution_str)
    if answer is None:
        return 0.0
    gold = str(ground_truth)
    gold = last_boxed(gold) or gold
    verdict = same_answer(answer, gold, undecided)
    equal = _comparer().equal(answer, gold) if verdict is None else verdict
    return score if equal else format_score


@functools.cache
def _comparer() -> Comparer:
    return Comparer()
