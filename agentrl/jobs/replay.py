"""`agentrl replay`: scores dumped conversations with another score function, and says what that would change.

A group of the scores `[1, 0, 0]` that another function scores `[0.2, 0.9, 0]` has a pair whose order is reversed: its
advantages would push the other way.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from agentrl.config.job_run import scoring_of
from agentrl.config.jobs import EvalConfig
from agentrl.errors import InfrastructureError, RewardError, UserInputError
from agentrl.interfaces import RewardInput, RewardManager
from agentrl.observability.dumps import Record, outcome_of, read_conversations, scored_text
from agentrl.plugins import registry
from agentrl.rewards.judged_answers import load_answer_scores
from agentrl.types import without_error_marks

_AT_ONCE = 64
_NO_CHANGE = 1e-9


@dataclass(frozen=True, slots=True)
class Replayed:
    """One conversation and its reward before and after."""

    record: Record
    file: Path
    before: float
    after: float | None
    """None: the function gave no score; `error` says why."""
    error: str | None = None

    @property
    def change(self) -> float:
        """After less before; 0 without a score."""
        return 0.0 if self.after is None else self.after - self.before

    @property
    def place(self) -> str:
        """`rollouts/3.jsonl:7`."""
        return f"{self.file}:{self.record['line']}"


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """What changes within groups, which is what their advantages are made of."""

    groups: int
    reversed: list[tuple[int, str]]
    """Step and uid of those in which a conversation that was better than another one is now worse."""
    retied: list[tuple[int, str]]
    """The others in which two become equal, or no longer are."""
    differed: int
    """Groups whose scores were not all equal, so that they could teach something."""
    differ: int
    """Those whose scores are not now."""


def replay_dumps(
    files: Sequence[Path], job: EvalConfig, weight: float, advance: Callable[[int, int], None]
) -> list[Replayed]:
    """Score every conversation of dumps again.

    Args:
        files: the dumps.
        job: with the score function; its responses are the dumps.
        weight: of the outcome in the run's reward (`reward_model.combine.outcome`): other parts stay as they were.
        advance: hears how many of how many are scored.

    Raises:
        UserInputError: a dump or the score function cannot be used, or nothing got a score.
    """
    records = [(file, record) for file in files for record in read_conversations(file)]
    registry.load_registrations(job.plugins)
    manager = load_answer_scores(scoring_of(job))
    done = asyncio.run(_score_all(records, manager, weight, advance))
    if done and all(item.after is None for item in done):
        raise UserInputError(f"none of {len(done)} conversations got a score; the first: {done[0].error}")
    return done


async def _score_all(
    records: Sequence[tuple[Path, Record]], manager: Any, weight: float, advance: Callable[[int, int], None]
) -> list[Replayed]:
    room, finished = asyncio.Semaphore(_AT_ONCE), 0

    async def one(file: Path, record: Record) -> Replayed:
        nonlocal finished
        async with room:
            scored = await _score(file, record, manager, weight)
        finished += 1
        advance(finished, len(records))
        return scored

    async with aclosing(manager):
        return list(await asyncio.gather(*(one(file, record) for file, record in records)))


async def _score(file: Path, record: Record, manager: RewardManager, weight: float) -> Replayed:
    before = float(record["score"])
    try:
        score = (await manager.score(reward_input(record))).score
    except (RewardError, InfrastructureError) as error:
        return Replayed(record, file, before, None, f"{type(error).__name__}: {error}")
    change = weight * (score - outcome_of(record))
    # An outcome that is a difference (-0.3 less the penalty -0.5) is not exactly what it was.
    return Replayed(record, file, before, before if abs(change) < _NO_CHANGE else before + change)


def reward_input(record: Record) -> RewardInput:
    """What the score function got when the conversation was dumped."""
    messages = without_error_marks(record.get("messages") or [])
    known = {name: record[name] for name in ("num_turns", "num_tool_calls") if name in record}
    plain = {"num_turns": 2, "turn_scores": [], "tool_rewards": [], "num_tool_calls": 0}
    extra = {**plain, **(record.get("extra_info") or {}), **known, "messages": messages}
    return RewardInput(str(record.get("data_source")), scored_text(record), record.get("gts"), extra)


def group_counts(done: Sequence[Replayed]) -> GroupCounts:
    """Look at each group of conversations of one prompt; those without a score are left out."""
    groups: dict[tuple[int, str], list[Replayed]] = defaultdict(list)
    for item in done:
        if item.after is not None:
            groups[int(item.record.get("step", 0)), str(item.record.get("uid"))].append(item)
    turned, tied = [], []
    for name, items in groups.items():
        signs = [(_sign(a.before - b.before), _sign((a.after or 0.0) - (b.after or 0.0))) for a, b in _pairs(items)]
        if any(before * after < 0 for before, after in signs):
            turned.append(name)
        elif any(before != after for before, after in signs):
            tied.append(name)
    return GroupCounts(
        len(groups),
        turned,
        tied,
        sum(len({item.before for item in items}) > 1 for items in groups.values()),
        sum(len({item.after for item in items}) > 1 for items in groups.values()),
    )


def _pairs(items: Sequence[Replayed]) -> Sequence[tuple[Replayed, Replayed]]:
    """One conversation of each pair of scores: 64 of a group have 2,016 pairs, but few different scores."""
    distinct = {(item.before, item.after): item for item in items}
    return list(combinations(distinct.values(), 2))


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
