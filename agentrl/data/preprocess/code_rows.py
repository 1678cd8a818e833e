"""`agentrl data apps`: programming problems whose tests run in the sandbox."""

from __future__ import annotations

import json

from agentrl.data.preprocess.converting import LeftOut
from agentrl.data.preprocess.reading import Cells, HubData
from agentrl.types import JsonDict

HUB_DATA = HubData("codeparrot/apps")
_INSTRUCTION = "Write a Python program that solves the problem. Put it in one ```python block."
_FUNCTION = "Write Python code that solves the problem, with a function `{name}`. Put it in one ```python block."


def apps_row(cells: Cells, split: str, index: int) -> JsonDict | LeftOut:
    """Dataset row of one problem.

    Args:
        cells: `{question, input_output, solutions?, starter_code?, difficulty?}`, the middle two as JSON text.
        split: `train` or `test`.
        index: number of the row in its split.

    Returns:
        The row; a problem without tests cannot be scored.

    Raises:
        DataError: a column is missing, or the tests are not `{inputs, outputs}` of equal length.
    """
    question = cells.text("question", "problem")
    column, given = cells.find("input_output", "tests") if cells.row.get("input_output") != "" else ("", "")
    tests = cells.parsed(column) if given else {}
    if not isinstance(tests, dict):
        raise cells.error(column, f"a {type(tests).__name__}", "{inputs: [...], outputs: [...]}")
    inputs, outputs = tests.get("inputs") or [], tests.get("outputs") or []
    if not inputs and not outputs:
        return LeftOut("without tests")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        got = f"{len(inputs)} inputs and {len(outputs)} outputs"
        raise cells.error(column, got, "as many outputs as inputs")
    starter = cells.row.get("starter_code") or ""
    ask = _FUNCTION.format(name=tests["fn_name"]) if tests.get("fn_name") else _INSTRUCTION
    parts = [question.strip(), f"Start from:\n```python\n{starter.strip()}\n```" if starter.strip() else "", ask]
    extra: JsonDict = {"split": split, "index": index, "question": question}
    extra |= {name: cells.row[name] for name in ("difficulty", "url") if isinstance(cells.row.get(name), str)}
    solution = _solution(cells)
    if solution:
        extra["answer"] = f"```python\n{solution.strip()}\n```"
    return {
        "data_source": "apps",
        "prompt": [{"role": "user", "content": "\n\n".join(filter(None, parts))}],
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": json.dumps(tests)},
        "agent_name": "single_turn_agent",
        "extra_info": extra,
    }


def _solution(cells: Cells) -> str:
    """The first of the solutions: `agentrl check --grader` scores it."""
    if not cells.row.get("solutions"):
        return ""
    solutions = cells.parsed("solutions")
    first = solutions[0] if isinstance(solutions, list) and solutions else ""
    return first if isinstance(first, str) else ""
