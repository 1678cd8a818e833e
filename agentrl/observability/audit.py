"""Proof, from a rollout dump alone, that every trained token was sampled, and by which weight version.

The rules that it checks: docs/token_rules.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from agentrl.errors import UserInputError
from agentrl.observability.dumps import Record, read_dump

FIELDS = ("prompt_ids", "response_ids", "response_mask", "loss_mask", "rollout_log_probs", "weight_versions")
TRAINED, SAMPLED, OBSERVED = "trained", "sampled", "observed"
"""Kinds of tokens: trained on (loss mask 1); sampled, but left out of training (`trainable_turns`); not sampled."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One token, or one trajectory, that breaks a rule."""

    file: Path
    line: int
    token: int | None
    """Index in the response; None: the trajectory as a whole."""
    what: str

    def __str__(self) -> str:
        where = "" if self.token is None else f", token {self.token}"
        return f"{self.file}:{self.line}{where}: {self.what}"


@dataclass(slots=True)
class Audit:
    """The result for one dumped trajectory."""

    file: Path
    line: int
    record: Record
    violations: list[Violation] = field(default_factory=list)
    trained_by: Counter[int] = field(default_factory=Counter)
    """Trained tokens by weight version."""
    segments: list[tuple[str, int, str]] = field(default_factory=list)
    """Kind, number of tokens and text of each run of tokens of one kind."""


def audit(files: Iterable[Path]) -> Iterator[Audit]:
    """Check every trajectory of the dumps.

    Raises:
        UserInputError: a file is not a rollout dump.
    """
    for file in files:
        for number, record in read_dump(file):
            yield _audit_record(file, number, _checked(file, number, record))


def _checked(file: Path, number: int, record: Record) -> Record:
    missing = [name for name in FIELDS if not isinstance(record.get(name), list)]
    if missing == ["loss_mask"] and "loss_mask" not in record:
        raise UserInputError(f"{file}:{number} has no loss_mask: an earlier agentrl wrote it; audit it with that one")
    if missing:
        raise UserInputError(f"{file}:{number} has no {', '.join(missing)}: the file is not a rollout dump of agentrl")
    return record


def _audit_record(file: Path, line: int, record: Record) -> Audit:
    result = Audit(file, line, record)
    columns = [record[name] for name in FIELDS[1:]]
    if len(set(map(len, columns))) != 1:
        lengths = ", ".join(f"{name} {len(record[name])}" for name in FIELDS[1:])
        result.violations.append(Violation(file, line, None, f"lengths differ: {lengths}"))
        return result
    _, mask, loss_mask, _, versions = columns
    odd = next((token for token, version in enumerate(versions) if not isinstance(version, int)), None)
    if odd is not None:
        what = f"weight_versions holds {versions[odd]!r}, wanted a whole number"
        result.violations.append(Violation(file, line, odd, what))
        return result
    newest = -1
    for token, (_, mark, trained, log_prob, version) in enumerate(zip(*columns, strict=True)):
        problem = _token_problem(mark, trained, log_prob, version, newest)
        if problem:
            result.violations.append(Violation(file, line, token, problem))
        newest = max(newest, version)
        if trained == 1:
            result.trained_by[version] += 1
    if versions and versions[-1] < 0:
        last = max((token for token, version in enumerate(versions) if version >= 0), default=-1)
        dangling = f"{len(versions) - 1 - last} tokens follow the last sampled token, which must end the response"
        result.violations.append(Violation(file, line, last + 1, dangling))
    kinds = [
        TRAINED if trained else SAMPLED if mark else OBSERVED for mark, trained in zip(mask, loss_mask, strict=True)
    ]
    result.segments = _segments(kinds, record)
    return result


def _token_problem(mark: Any, trained: Any, log_prob: Any, version: int, newest: int) -> str | None:
    """What is wrong with one token, or None."""
    if mark not in (0, 1):
        return f"the mask holds {mark!r}, wanted 0 or 1"
    if not isinstance(log_prob, int | float) or not math.isfinite(log_prob):
        return f"its log-prob is {log_prob!r}, wanted a finite number"
    if mark == 1 and version < 0:
        return "its mask is 1, but no weight version sampled it"
    if mark == 0 and version >= 0:
        return f"weight version {version} sampled it, but its mask is 0"
    if trained not in (0, mark):
        return f"its loss mask is {trained!r}, wanted 0 or its mask, {mark}: only sampled tokens are trained on"
    if version < 0 and log_prob != 0:
        return f"it was not sampled, but has the log-prob {log_prob:g}, wanted 0"
    if log_prob > 1e-3:
        return f"its log-prob is {log_prob:g}, wanted at most 0"
    if 0 <= version < newest:
        return f"weight version {version} sampled it after version {newest}: an engine served old weights"
    return None


def _segments(kinds: Sequence[str], record: Record) -> list[tuple[str, int, str]]:
    """Runs of tokens of one kind, with the text that the dump holds for each, else their ids."""
    runs = [(kind, len(list(group))) for kind, group in groupby(kinds)]
    kept = record.get("segments") or []
    if [count for count, _ in kept] == [count for _, count in runs]:
        return [(kind, count, text) for (kind, count), (_, text) in zip(runs, kept, strict=True)]
    segments, start = [], 0
    for kind, count in runs:
        segments.append((kind, count, " ".join(map(str, record["response_ids"][start : start + count])) + " "))
        start += count
    return segments
