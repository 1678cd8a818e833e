"""`agentrl data search`: questions whose answers are looked up, with Search-R1's tags or a tool."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from agentrl.data.preprocess.reading import Cells, HubData
from agentrl.errors import DataError, repr_of
from agentrl.types import JsonDict, Message

HUB_DATA = HubData("RUC-NLPIR/FlashRAG_datasets", "nq", {"train": "train", "test": "test"})
_TAGS = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new "
    "information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query "
    "</search>, and it will return the top searched results between <information> and </information>. You can search "
    "as many times as you want. If you find no further external knowledge needed, you can directly provide the answer "
    "inside <answer> and </answer>, without detailed illustrations. For example, <answer> Beijing </answer>. "
    "Question: {question}"
)
_TOOL = (
    "Answer the question. Look up what you do not know with the tool `search`, as often as you need. Put the answer "
    "alone between <answer> and </answer>."
)
_GOLDS = ("golden_answers", "answers", "answer", "target")


def search_row(cells: Cells, split: str, index: int, variant: str, source: str | None) -> JsonDict:
    """Dataset row of one question.

    Args:
        cells: `{question, golden_answers}`, and optionally `data_source`.
        split: `train` or `test`.
        index: number of the row in its split.
        variant: tags (`search_r1_agent`) or tool (`tool_agent` with the tool `search`).
        source: `data_source` of the rows; None: the row's own, else `nq`.

    Raises:
        DataError: a column is missing, or there is no answer.
    """
    question = cells.text("question", "query")
    question = question if question.rstrip().endswith("?") else f"{question.rstrip()}?"
    own = cells.row.get("data_source")
    return {
        "data_source": source or (own if isinstance(own, str) and own else "nq"),
        "prompt": _prompt(question, variant),
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": _golds(cells)}},
        "agent_name": "search_r1_agent" if variant == "tags" else "tool_agent",
        "extra_info": {"split": split, "index": index, "question": question},
    }


def _golds(cells: Cells) -> list[str]:
    column, value = cells.find(*_GOLDS)
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = cells.parsed(column)
    if isinstance(value, dict):  # HotpotQA and SQuAD: {"text": [...], ...}
        value = value.get("text", value.get("target"))
    golds = [str(gold) for gold in (value if isinstance(value, list) else [value]) if gold not in (None, "")]
    if not golds:
        raise cells.error(column, repr_of(value), "an answer, or a list of answers")
    return golds


def _prompt(question: str, variant: str) -> list[Message]:
    if variant == "tags":
        return [{"role": "user", "content": _TAGS.format(question=question)}]
    return [{"role": "system", "content": _TOOL}, {"role": "user", "content": question}]


def index_command(corpus: Path, out: Path, kind: str) -> str:
    """The command that builds a search index of a corpus, which is looked at first.

    Raises:
        DataError: no such file, or its first line is no document.
    """
    try:
        with corpus.open(encoding="utf-8") as lines:
            first: Any = json.loads(next(lines, "null"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(str(corpus), None, None, getattr(error, "strerror", None) or str(error), "a corpus") from error
    except ValueError:
        first = None
    if not isinstance(first, dict) or not {"contents", "text"} & first.keys():
        wanted = 'one document per line: {"id": ..., "contents": "\\"Title\\"\\ntext"}'
        raise DataError(str(corpus), 0, None, repr_of(first), wanted)
    return f"agentrl data index {shlex.quote(str(corpus))} --out {shlex.quote(str(out / 'index'))} --kind {kind}"
