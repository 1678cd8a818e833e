r"""`agentrl data math`, `aime` and `geo3k`: problems whose answer stands in `\boxed{}`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.boxed import last_boxed
from agentrl.data.preprocess.reading import Cells, HubData
from agentrl.data.row_pictures import MARKER
from agentrl.errors import PictureError
from agentrl.pictures import read_picture
from agentrl.types import JsonDict, Message

_INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."
_THINK = (
    "You FIRST think about the reasoning process as an internal monologue and then provide the final answer. The "
    "reasoning process MUST BE enclosed within <think> </think> tags. The final answer MUST BE put in \\boxed{}."
)
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
        images: columns that may hold the problem's pictures.
        instruction: what the model is told behind the problem.
    """

    source: str
    hub: HubData
    problems: Sequence[str] = ("problem", "question")
    answers: Sequence[str] = ("answer",)
    solutions: Sequence[str] = ("solution",)
    single: str = "train"
    images: Sequence[str] = ()
    instruction: str = _INSTRUCTION

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
        problem, pictures = cells.text(*self.problems).strip(), self._pictures(cells)
        bare = problem.replace(MARKER, "").strip()
        if problem.count(MARKER) != len(pictures):
            problem = MARKER * len(pictures) + bare
        answer = self._answer(cells)
        extra: JsonDict = {"split": split, "index": index, "question": bare, "answer": f"\\boxed{{{answer}}}"}
        extra |= {
            name: cells.row[name] for name in ("level", "type", "subject") if isinstance(cells.row.get(name), str)
        }
        return {
            "data_source": self.source,
            "prompt": self._prompt(problem, variant),
            **({"images": pictures} if self.images else {}),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "agent_name": "tool_agent" if variant == "tool" else "single_turn_agent",
            "extra_info": extra,
        }

    def _prompt(self, problem: str, variant: str) -> list[Message]:
        if variant == "tool":
            return [{"role": "system", "content": _TOOL_SYSTEM}, {"role": "user", "content": problem}]
        return [{"role": "user", "content": f"{problem} {self.instruction}"}]

    def _pictures(self, cells: Cells) -> list[JsonDict]:
        column = next((name for name in self.images if cells.row.get(name)), None)
        if column is None:
            return []
        given = cells.row[column]
        given = given if isinstance(given, list) else [given]
        try:
            read = [read_picture(value, Path(cells.file).parent) for value in given if value is not None]
        except PictureError as error:
            raise cells.error(column, "a cell that is no picture", str(error)) from error
        return [{"bytes": picture.data, "path": None} for picture in read]

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


MATH = MathData("DigitalLearningGmbH/MATH-lighteval", HubData("DigitalLearningGmbH/MATH-lighteval"))
AIME = MathData(
    "Maxwell-Jia/AIME_2024",
    HubData("Maxwell-Jia/AIME_2024", None, {"test": "train"}),
    problems=("Problem", "problem", "question"),
    answers=("Answer", "answer"),
    solutions=("Solution", "solution"),
    single="test",
)
GEO3K = MathData(
    "hiyouga/geometry3k",
    HubData("hiyouga/geometry3k"),
    images=("images", "image"),
    instruction=_THINK,
)
