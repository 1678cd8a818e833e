"""Exact match for question answering with search (the scoring that Search-R1's datasets expect).

The last `<answer>` of what the assistant wrote counts. Both sides are normalised: lower case, ASCII punctuation
deleted, the words a, an, the dropped, spaces collapsed. A gold answer that normalises to nothing never matches.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Literal

from agentrl.errors import RewardError
from agentrl.reported import finite_number_of
from agentrl.rewards.scores.gold_texts import container_as_text, none_as_text

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
ARTICLE = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
_INSIDE = r"(?:(?!</?(?:think|search|answer|information)>).)*"
_THOUGHT = rf"\s*<think>{_INSIDE}</think>\s*"
WELL_FORMED = re.compile(
    rf"(?=.)(?:{_THOUGHT}<search>{_INSIDE}</search>\s*)*(?:{_THOUGHT}<answer>{_INSIDE}</answer>\s*)?", re.DOTALL
)
"""Turns of a thought and a search, then a thought and the answer; the answer may be missing."""


def normalize_answer(text: str) -> str:
    """The normalised form in which answers are compared."""
    return " ".join(ARTICLE.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(prediction: str, golds: Iterable[str]) -> bool:
    """Whether the prediction is one of the gold answers."""
    given = normalize_answer(prediction)
    return any(gold and gold == given for gold in map(normalize_answer, golds))


def substring_match(prediction: str, golds: Iterable[str]) -> bool:
    """Whether the prediction contains one of the gold answers."""
    given = normalize_answer(prediction)
    return any(gold and gold in given for gold in map(normalize_answer, golds))


def compute_score(
    solution_str: str,
    ground_truth: Any,
    method: Literal["em", "substring"] = "em",
    format_score: float = 0.0,
    score: float = 1.0,
    format_reward: bool = False,
) -> float:
    """`score` for a right answer, `format_score` for a wrong one, 0 for none.

    Args:
        solution_str: what the assistant wrote, all its turns.
        ground_truth: see `golds_of`.
        method: equality, or containment of a gold answer.
        format_score: the score of a wrong answer.
        score: the score of a right answer.
        format_reward: also judge the tags: right 1.0 (0.8 if badly formed), wrong 0.2 (0.1), no answer 0.2 (0).

    Raises:
        RewardError: the ground truth holds no gold answer.
    """
    golds = golds_of(ground_truth)
    answers = ANSWER.findall(solution_str)
    matches = exact_match if method == "em" else substring_match
    right = bool(answers) and matches(answers[-1], golds)
    if not format_reward:
        return (score if right else format_score) if answers else 0.0
    well_formed = WELL_FORMED.fullmatch(solution_str) is not None
    if right:
        return score if well_formed else score - 0.2
    if answers:
        return 0.2 if well_formed else 0.1
    return 0.2 if well_formed else 0.0


def search_gold_problem(ground_truth: Any) -> str | None:
    """Why a ground truth cannot be scored; None: it can."""
    try:
        golds = golds_of(ground_truth)
    except RewardError as error:
        return str(error)
    if any(normalize_answer(gold) and not container_as_text(gold) for gold in golds):
        return None
    written = next(filter(None, map(container_as_text, golds)), None)
    if written is not None:
        return written
    return (
        f"no answer can equal the ground truth {ground_truth!r:.200}: punctuation and the words a, an, the are dropped"
    )


def golds_of(ground_truth: Any) -> list[str]:
    """The gold answers of a row: those of `{"target": [...]}`, of a list, or one. JSON text is read as what it holds.

    Raises:
        RewardError: there is none; null and NaN are none, and so is a Python list that was written as text.
    """
    target = _read(ground_truth)
    if isinstance(target, dict):
        target = _read(target.get("target"))
        target = target if isinstance(target, list | tuple) or _no_answer(target) else [target]
    golds = target if isinstance(target, list | tuple) else [target] if isinstance(target, str) else []
    texts = [str(gold) for gold in golds if isinstance(gold, str) or finite_number_of(gold) is not None]
    if not texts or _no_answer(target):
        why = f" ({_no_answer(target)})" if isinstance(target, str) else ""
        raise RewardError(f"the ground truth {ground_truth!r} holds no gold answer{why}: give {{'target': [..]}}")
    return texts


def _no_answer(target: Any) -> str | None:
    return none_as_text(target) or container_as_text(target)


def _read(value: Any) -> Any:
    """`'{"target": ["a"]}'` and `'["a", "b"]'` as the mapping or list that they are written for; else the value.

    Of a mapping with other keys nobody could say which holds the answer: it has none.
    """
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        with suppress(ValueError):
            return json.loads(value)
    return value.tolist() if hasattr(value, "tolist") else value
