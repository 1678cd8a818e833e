"""`agentrl data gsm8k`: GSM8K as rows for plain answers, a tool-using agent, or a conversation with a checker."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from agentrl.data.preprocess.writing import write_parquet
from agentrl.errors import DataError, UserInputError
from agentrl.types import JsonDict, Message

DATA_SOURCE = "openai/gsm8k"
logger = logging.getLogger(__name__)

HUB = "hub"
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
        source: a jsonl file, a folder that holds `{split}.jsonl`, or `hub` (needs `datasets` and a network).
        split: `train` or `test`.

    Raises:
        DataError: a file is missing, or a line is not such a row.
    """
    if str(source) == HUB:
        yield from _read_hub(split)
        return
    path = Path(source).expanduser()
    path = path / f"{split}.jsonl" if path.is_dir() else path
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                if line.strip():
                    yield _parse_line(str(path), number, line)
    except OSError as error:
        raise DataError(str(path), None, None, error.strerror or str(error), "a readable jsonl file") from error


def _parse_line(file: str, number: int, line: str) -> JsonDict:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(file, number, None, f"invalid JSON ({error})", "one JSON object per line") from error
    if not isinstance(row, dict):
        raise DataError(file, number, None, f"a {type(row).__name__}", "a JSON object")
    for column in ("question", "answer"):
        if not isinstance(row.get(column), str):
            raise DataError(file, number, column, repr(row.get(column)), "a string")
    return row


def _read_hub(split: str) -> Iterator[JsonDict]:
    try:
        from datasets import load_dataset  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise UserInputError(
            "`--source hub` needs the `datasets` package: `pip install datasets`, or give a local folder with "
            "train.jsonl and test.jsonl: `--source DIR`"
        ) from error
    logger.info("loading %s from the Hugging Face hub; it is downloaded unless it is in the cache", DATA_SOURCE)
    try:
        rows = load_dataset(DATA_SOURCE, "main", split=split)
    except (OSError, ValueError) as error:
        raise UserInputError(f"cannot load {DATA_SOURCE} from the hub: {error}") from error
    yield from ({"question": row["question"], "answer": row["answer"]} for row in rows)


def final_answer(solution: str) -> str | None:
    """The number after the last `####`, without thousands separators; None if not found."""
    _, marker, tail = solution.rpartition("####")
    return tail.strip().replace(",", "").removeprefix("$") or None if marker else None


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


def write_gsm8k(out: Path, source: str, variant: Variant, test_source: str | None = None) -> dict[str, Path]:
    """Write `train.parquet` and, if the source has a test split, `test.parquet` to `out`.

    Args:
        out: folder; created if missing.
        source: a folder with `train.jsonl` and `test.jsonl`, a training jsonl file, or `hub`.
        variant: plain, tool or interaction.
        test_source: the test jsonl file, if it is not in `source`.

    Returns:
        The written file of each split.
    """
    sources: dict[str, str] = {"train": source}
    if test_source is not None:
        sources["test"] = test_source
    elif source == HUB or Path(source).expanduser().joinpath("test.jsonl").is_file():
        sources["test"] = source
    return {
        split: write_parquet(
            [gsm8k_row(row, split, index, variant, given) for index, row in enumerate(read_gsm8k(given, split))],
            out / f"{split}.parquet",
        )
        for split, given in sources.items()
    }
