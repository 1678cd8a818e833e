"""Arithmetic: the last number of the final answer against the ground truth. Numbers inside tool calls do not count."""

from __future__ import annotations

import re
from typing import Any

from agentrl.errors import RewardError
from agentrl.rewards.scores.numbers import last_number, to_number

TOOL_CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)


def arithmetic_gold_problem(ground_truth: Any) -> str | None:
    """Why a ground truth cannot be scored; None: it can."""
    return f"the ground truth {ground_truth!r:.200} is not a number" if to_number(ground_truth) is None else None


def compute_score(solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None) -> float:
    """1.0 if the last number of the final answer equals the ground truth, else 0.0.

    Args:
        solution_str: what the assistant wrote, all its turns.
        ground_truth: the value of the expression.
        extra_info: if it holds `messages`, the final answer is the last assistant message.

    Raises:
        RewardError: the ground truth is not a number.
    """
    wanted = to_number(ground_truth)
    if wanted is None:
        raise RewardError(arithmetic_gold_problem(ground_truth))
    answer = _final_answer(extra_info, solution_str)
    return float(last_number(TOOL_CALL.sub(" ", answer)) == wanted)


def _final_answer(extra_info: dict[str, Any] | None, solution_str: str) -> str:
    for message in reversed((extra_info or {}).get("messages") or []):
        if message.get("role") == "assistant":
            return str(message.get("content") or "")
    return solution_str
