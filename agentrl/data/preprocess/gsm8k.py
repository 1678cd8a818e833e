"""`agentrl data gsm8k`: GSM8K as rows for plain answers, a tool-using agent, or a conversation with a checker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from agentrl.data.preprocess.converting import convert
from agentrl.data.preprocess.reading import Cells, HubData, read_rows, split_sources
from agentrl.errors import DataError
from agentrl.types import JsonDict, Message

DATA_SOURCE = "openai/gsm8k"
HUB_DATA = HubData(DATA_SOURCE, "main")
Variant = Literal["plain", "tool", "interaction"]

_INSTRUCTION = "Let's think step by step and output the final answer after `####`."
_TOOL_SYSTEM = (
    "You solve math problems. Reason step by step, and use the tools that you are given: check your answer with "
    "`calc_gsm8k_reward` at least once before the final answer, and correct it if it is wrong. "
    "Put the final answer in the format `#### <answer>`."
)
_INTERACTION_SYSTEM = (
    "You solve math problems. Reason step by step and put the answer in the format `#### <answer>`. "
    "If you are told that it is wrong, find the mistake and answer again."
)


def read_gsm8k(source: Path | str, split: str) -> Iterator[JsonDict]:
    """Yield `{question, answer}` rows of a split.

    Args:
        source: a file, a folder that holds one of that split, or `hub` (needs `datasets` and a network).
        split: `train` or `test`.

    Raises:
        DataError: a file is missing, or a line is not such a row.
    """
    sources = split_sources(str(source), HUB_DATA, split)
    if split not in sources:
        raise DataError(str(source), None, None, f"a folder without a {split} file", f"{split}.jsonl")
    for cells in read_rows(sources[split], split, HUB_DATA):
        yield {column: cells.text(column) for column in ("question", "answer")}


def final_answer(solution: str) -> str | None:
    """The number after the last `####`, without thousands separators; None if not found."""
    _, marker, tail = solution.rpartition("####")
    number = tail.strip().removeprefix("$")
    if re.fullmatch(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?", number):
        number = number.replace(",", "")
    return number or None if marker else None


def gsm8k_row(row: JsonDict, split: str, index: int, variant: Variant, file: str) -> JsonDict:
    """Dataset row of one problem.

    Args:
        row: `{question, answer}`.
        split: `train` or `test`.
        index: number of the row in its split.
        variant: plain (`single_turn_agent`), tool or interaction (`tool_agent`).
        file: named in errors.
    """
    question, solution = row["question"], row["answer"]
    answer = final_answer(solution)
    if answer is None:
        raise DataError(file, index, "answer", "no final answer", "a solution that ends in `#### NUMBER`")
    extra_info: JsonDict = {"split": split, "index": index, "question": question, "answer": solution}
    if variant == "tool":
        extra_info |= {
            "need_tools_kwargs": True,
            "tools_kwargs": {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": answer}}},
        }
    if variant == "interaction":
        extra_info["interaction_kwargs"] = {"name": "gsm8k", "query": question, "ground_truth": answer}
    return {
        "data_source": DATA_SOURCE,
        "prompt": _prompt(question, variant),
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "agent_name": "single_turn_agent" if variant == "plain" else "tool_agent",
        "extra_info": extra_info,
    }


def _prompt(question: str, variant: Variant) -> list[Message]:
    if variant == "plain":
        return [{"role": "user", "content": f"{question} {_INSTRUCTION}"}]
    system = _TOOL_SYSTEM if variant == "tool" else _INTERACTION_SYSTEM
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def write_gsm8k(
    out: Path, source: str, variant: Variant, test_source: str | None = None, overwrite: bool = True
) -> dict[str, Path]:
    """Write `train.parquet` and, if the source has a test split, `test.parquet` to `out`.

    Args:
        out: folder; created if missing.
        source: a folder with `train.jsonl` and `test.jsonl`, a training file, or `hub`.
        variant: plain, tool or interaction.
        test_source: the test file, if it is not in `source`.
        overwrite: replace files that exist.

    Returns:
        The written file of each split.
    """

    def make(cells: Cells, split: str, index: int) -> JsonDict:
        row = {column: cells.text(column) for column in ("question", "answer")}
        return gsm8k_row(row, split, index, variant, cells.file)

    done = convert(make, source=source, out=out, hub=HUB_DATA, test_source=test_source, overwrite=overwrite)
    return done.files
