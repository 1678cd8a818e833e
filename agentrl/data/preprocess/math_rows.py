r"""`agentrl data math`, `aime` and `geo3k`: problems whose answer stands in `\boxed{}`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.boxed import last_boxed
from agentrl.data.preprocess.reading import Cells, HubData
from agentrl.types import JsonDict, Message

_INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."
_TOOL_SYSTEM = (
    "You solve math problems. Reason step by step, and use the tool `calculator` for what you cannot compute in your "
    "head. Put the final answer within \\boxed{}."
)


@dataclass(frozen=True, slots=True)
class MathData:
    """One data set of problems.

    Attributes:
        source: `data_source` of its rows.
        hub: where it is on the hub.
        problems: columns that may hold the problem.
        answers: columns that may hold the answer itself.
        solutions: columns that may hold a solution with the answer in it.
        single: the split that a single file is.
        images: columns of pictures, which the model cannot see.
    """

    source: str
    hub: HubData
    problems: Sequence[str] = ("problem", "question")
    answers: Sequence[str] = ("answer",)
    solutions: Sequence[str] = ("solution",)
    single: str = "train"
    images: Sequence[str] = ()

    def row(self, cells: Cells, split: str, index: int, variant: str) -> JsonDict:
        """Dataset row of one problem.

        Args:
            cells: `{problem, answer}` or `{problem, solution}`.
            split: `train` or `test`.
            index: number of the row in its split.
            variant: plain (`single_turn_agent`), or tool (`tool_agent` with the calculator).

        Raises:
            DataError: a column is missing, or a solution has no boxed answer.
        """
        problem = cells.text(*self.problems).replace("<image>", "").strip()
        answer = self._answer(cells)
        extra: JsonDict = {"split": split, "index": index, "question": problem, "answer": f"\\boxed{{{answer}}}"}
        extra |= {
            name: cells.row[name] for name in ("level", "type", "subject") if isinstance(cells.row.get(name), str)
        }
        return {
            "data_source": self.source,
            "prompt": _prompt(problem, variant),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "agent_name": "tool_agent" if variant == "tool" else "single_turn_agent",
            "extra_info": extra,
        }

    def _answer(self, cells: Cells) -> str:
        given = next((cells.row[name] for name in self.answers if cells.row.get(name) is not None), None)
        if given is not None:
            return _text(given)
        column, solution = cells.find(*self.solutions, *self.answers)
        answer = last_boxed(str(solution))
        if answer is None:
            raise cells.error(column, "a solution without a boxed answer", "one that ends in \\boxed{ANSWER}")
        return answer.strip()


def _text(answer: Any) -> str:
    """An answer as text: `204.0`, as a table may have it, is 204."""
    whole = isinstance(answer, float) and answer.is_integer()
    text = str(int(answer) if whole else answer).strip()
    return last_boxed(text) or text


def _prompt(problem: str, variant: str) -> list[Message]:
    if variant == "tool":
        return [{"role": "system", "content": _TOOL_SYSTEM}, {"role": "user", "content": problem}]
    return [{"role": "user", "content": f"{problem} {_INSTRUCTION}"}]


MATH = MathData("DigitalLearningGmbH/MATH-lighteval", HubData("DigitalLearningGmbH/MATH-lighteval"))
AIME = MathData(
    "Maxwell-Jia/AIME_2024",
    HubData("Maxwell-Jia/AIME_2024", None, {"test": "train"}),
    problems=("Problem", "problem", "question"),
    answers=("Answer", "answer"),
    solutions=("Solution", "solution"),
    single="test",
)
GEO3K = MathData("hiyouga/geometry3k", HubData("hiyouga/geometry3k"), images=("images", "image"))
