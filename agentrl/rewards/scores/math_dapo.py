r"""DAPO's mathematics: the last line `Answer: …` (or `\boxed{}`), right 1 and wrong -1."""

from __future__ import annotations

import re
from typing import Any

from agentrl.boxed import last_boxed
from agentrl.rewards.scores import math

# `Answer: 34`, `**Answer**: 34`, `**Answer:** 34`; a formula may open on the line before it.
_ANSWER = re.compile(r"answer(?:\*\*)?\s*[:：]\s*(?:\*\*)?\s*(?:\\\[|\$\$(?=\n))?\s*(?=\S)", re.IGNORECASE)


def answer_of(solution_str: str, strict_box_verify: bool = False) -> str | None:
    r"""What stands behind the last `Answer:`, without a box around it; None: nothing does.

    Args:
        solution_str: the response.
        strict_box_verify: the content of the last `\boxed{}` instead.
    """
    if strict_box_verify:
        return last_boxed(solution_str)
    starts = list(_ANSWER.finditer(solution_str))
    if not starts:
        return None
    rest = solution_str[starts[-1].end() :]
    line = rest.partition("\n")[0].strip().removesuffix("**").strip()
    boxed = last_boxed(line)
    if boxed is None and line.startswith("\\boxed{"):  # its end is on a later line
        boxed = last_boxed(rest)
    return boxed if boxed is not None else line


def compute_score(solution_str: str, ground_truth: Any, strict_box_verify: bool = False) -> dict[str, Any]:
    """Compare the answer with the ground truth, as `math.compute_score` compares them.

    Returns:
        `score` 1.0 or -1.0, `acc` 1.0 or 0.0, and `pred`, the answer (empty if there is none).

    Raises:
        RewardError: as `math.compute_score`.
    """
    answer = answer_of(solution_str, strict_box_verify)
    acc = math.compute_score(f"\\boxed{{{answer}}}", ground_truth) if answer else 0.0
    return {"score": 1.0 if acc else -1.0, "acc": acc, "pred": answer or ""}
