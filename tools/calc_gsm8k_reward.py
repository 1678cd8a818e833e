"""A grader for GSM8K that the model may call before its final answer: it says whether a number is right."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from agentrl.interfaces import TOOL_CONFIG, BaseTool, check_config
from agentrl.types import JsonDict, ToolResponse

_NUMBER = re.compile(r"-?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)\.?[0-9]*|\.[0-9]+)(?:/[0-9]+)?")
_GOES_ON = re.compile(r",+[0-9]|[-–—−:][0-9]")
"""Behind a marked number: `1,2`, `7:30` and `10-12` are not their first numbers."""


class CalcGsm8kReward(BaseTool):
    """Grades an answer against the row's ground truth.

    The tool keeps the trajectory's best grade: a call that does not improve on it costs `penalty`.

    Args:
        config: `penalty` (default 0.05).
        tool_schema: None: the built-in one.
    """

    def __init__(self, config: JsonDict, tool_schema: JsonDict | None = None) -> None:
        super().__init__(config, tool_schema)
        check_config(config, (*TOOL_CONFIG, "penalty"))
        self._penalty = float(config.get("penalty", 0.05))
        self._truth: Fraction | None = None
        self._best = 0.0

    @classmethod
    def default_schema(cls) -> JsonDict:
        """One text argument."""
        answer = {"type": "string", "description": "Your answer to the question: a number."}
        return {
            "type": "function",
            "function": {
                "name": "calc_gsm8k_reward",
                "description": "Grade an answer to the maths question: 1.0 if it is right, 0.0 if it is wrong.",
                "parameters": {"type": "object", "properties": {"answer": answer}, "required": ["answer"]},
            },
        }

    async def create(self, **create_kwargs: Any) -> None:
        """Needs `ground_truth` in the row's `create_kwargs`."""
        truth = create_kwargs.get("ground_truth")
        self._truth = read_number(f"#### {truth}")
        if truth is None or self._truth is None:
            raise ValueError(f"`create_kwargs.ground_truth`: got {truth!r}, wanted a number")

    async def execute(self, arguments: JsonDict, **execute_kwargs: Any) -> ToolResponse:
        """Grade one answer; the reward is 0, or minus the penalty if the grade is not better than before."""
        answer = read_number(str(arguments["answer"]))
        if answer is None:
            return ToolResponse(text="The answer must contain a number.", reward=-self._penalty, is_error=True)
        grade = float(answer == self._truth)
        improved, self._best = grade > self._best, max(self._best, grade)
        verdict = f"Graded answer: {arguments['answer']}. Score: {grade}"
        return ToolResponse(text=verdict, reward=0.0 if improved else -self._penalty)

    async def calc_reward(self, **kwargs: Any) -> float:
        """The best grade of the trajectory."""
        return self._best


def read_number(text: str) -> Fraction | None:
    """The number after the last `####`, else the last one; `1,234.`, `$1234` and `1234.0` are the same number."""
    _, marker, end = text.rpartition("####")
    found = list(_NUMBER.finditer(end))
    if not found or (marker and _GOES_ON.match(end, found[0].end())):
        return None
    number, _, divisor = found[0 if marker else -1][0].partition("/")
    if divisor and not int(divisor):
        return None
    return Fraction(number.replace(",", "").rstrip(".")) / int(divisor or 1)
