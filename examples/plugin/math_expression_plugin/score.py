"""The score function `math_expression_score`."""

from __future__ import annotations

import re
from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> dict[str, float]:
    """1 if the last number of the answer is right, 0.9 if it is right but no expression was used, else 0."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", re.sub(r"<expr>.*?</expr>", "", solution_str, flags=re.DOTALL))
    right = bool(numbers) and float(numbers[-1]) == float(ground_truth)
    used = (extra_info or {}).get("num_tool_calls", 0) > 0
    return {"score": right - 0.1 * (right and not used), "right": float(right)}
