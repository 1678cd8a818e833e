"""Does the score function accept a right answer? Before training, it scores the answers that the rows hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from agentrl.errors import InfrastructureError, RewardError
from agentrl.interfaces import RewardInput, RewardManager
from agentrl.rewards.dispatcher import CODE_SOURCES, first_gold, truth_problem
from agentrl.types import Sample

FORMS = ("#### {}", "\\boxed{{{}}}", "<answer>{}</answer>", "{}", "Answer: {}")
"""How answers are written for GSM8K, for MATH, for question answering with search, plainly, and for DAPO."""
_AT_ONCE = 64
_LOOKED_AT = 100
"""At most this many rows are searched for one with another answer."""


@dataclass(frozen=True, slots=True)
class GradedRow:
    """How the score function grades one row."""

    sample: Sample
    answer: str | None = None
    """The right answer, in the form that scored best; None: the row holds none."""
    gold: float | None = None
    """Its score."""
    other: float | None = None
    """Score of another row's answer in the same form; None: no row with a different answer was found."""
    empty: float | None = None
    """Score of an empty answer."""
    problem: str | None = None
    """What is wrong with the row or its score function."""


def gold_answers(sample: Sample) -> list[str]:
    """The right answer as it may be written: `extra_info.answer`, and the ground truth in each of `FORMS`.

    Empty if the row holds no answer, like a coding task whose ground truth is its tests.
    """
    answer = sample.extra_info.get("answer")
    given = [answer] if isinstance(answer, str) and answer.strip() else []
    truth = None if sample.data_source in CODE_SOURCES else _text(first_gold(sample))
    return given + ([form.format(truth) for form in FORMS] if truth else [])


def _text(truth: Any) -> str | None:
    """The ground truth as one answer: the first of several; of a GSM8K solution, the part after its marker."""
    if isinstance(truth, dict):
        truth = truth.get("target")
    if isinstance(truth, list | tuple):
        truth = truth[0] if truth else None
    return None if truth is None or isinstance(truth, dict | list) else str(truth).rpartition("####")[2].strip()


async def grade_golds(
    samples: Iterable[Sample],
    manager: RewardManager,
    tick: Callable[[], None] = lambda: None,
    *,
    built_in: bool = False,
) -> list[GradedRow]:
    """Score the right answer of each row, another row's and an empty one.

    Args:
        samples: the rows.
        manager: of the run.
        tick: called after each row.
        built_in: rows are scored by the built-in score of their `data_source`.

    Returns:
        One entry per row, sorted by data source.

    Raises:
        UserInputError: a row has no score function.
    """
    room = asyncio.Semaphore(_AT_ONCE)

    async def grade(rows: Sequence[Sample], place: int) -> GradedRow:
        async with room:
            following = (rows[(place + step) % len(rows)] for step in range(1, _LOOKED_AT))
            answers = gold_answers(rows[place])
            # Tests without an answer that they could be tried on are `agentrl train --dry-run`'s to judge.
            problem = truth_problem(rows[place], language="python" if answers else None) if built_in else None
            row = (
                await _grade(rows[place], answers, following, manager)
                if problem is None
                else GradedRow(rows[place], answers[0] if answers else None, problem=problem)
            )
        tick()
        return row

    by_source = sorted(samples, key=lambda sample: sample.data_source)
    groups = [list(group) for _, group in groupby(by_source, key=lambda sample: sample.data_source)]
    return await asyncio.gather(*(grade(rows, place) for rows in groups for place in range(len(rows))))


async def _grade(sample: Sample, answers: list[str], others: Iterable[Sample], manager: RewardManager) -> GradedRow:
    if not answers:
        return GradedRow(sample)
    scores = await asyncio.gather(*(_score(manager, sample, answer) for answer in answers))
    known = [(score, -place) for place, score in enumerate(scores) if isinstance(score, float)]
    if not known:
        return GradedRow(sample, answers[0], problem=str(scores[0]))
    gold, place = max(known)
    answer = answers[-place]
    empty = await _score(manager, sample, "")
    if not isinstance(empty, float):
        problem = f"an empty answer fails: {empty}; such trajectories would be left out, not scored"
        return GradedRow(sample, answer, gold, problem=problem)
    if gold <= empty:
        return GradedRow(sample, answer, gold, None, empty, f"scores {gold:g}, an empty answer {empty:g}")
    wrong = _other_answer(answers, -place, others)
    other = None if wrong is None else await _score(manager, sample, wrong)
    return GradedRow(sample, answer, gold, other if isinstance(other, float) else None, empty)


def _other_answer(answers: list[str], place: int, others: Iterable[Sample]) -> str | None:
    for other in others:
        wrong = gold_answers(other)
        if len(wrong) == len(answers) and wrong[-1] != answers[-1]:
            return wrong[place]
    return None


async def _score(manager: RewardManager, sample: Sample, answer: str) -> float | RewardError | InfrastructureError:
    known = {"num_turns": 2, "turn_scores": [], "tool_rewards": [], "num_tool_calls": 0}
    messages = [*sample.prompt, {"role": "assistant", "content": answer}]
    extra = {**sample.extra_info, **known, "messages": messages}
    try:
        return (await manager.score(RewardInput(sample.data_source, answer, sample.ground_truth, extra))).score
    except (RewardError, InfrastructureError) as error:
        return error
