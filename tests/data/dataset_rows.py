"""A valid row."""

from __future__ import annotations

from typing import Any


def row(number: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"question {number}"}],
        "reward_model": {"style": "rule", "ground_truth": str(number)},
        **changes,
    }
