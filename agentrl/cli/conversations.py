"""`agentrl show`: conversations of a run as text, with their rewards and the reasons."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from agentrl.cli.output import print_json
from agentrl.observability.conversation_text import conversation_lines, heading
from agentrl.observability.dumps import Record, failed_trajectories, find_dumps, read_conversations
from agentrl.observability.run_folder import Kind
from agentrl.observability.wording import visible

USUAL = 3
"""Conversations of each end where no option says how many."""
MOST_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which conversations: those with the lowest and the highest scores, and the failed ones."""

    worst: int
    best: int
    failed: bool
    step: int | None
    kind: Kind | None
    """None: those of training, else those of validation."""
    all_steps: bool
    text: str | None
    """Only those that say this; capital letters do not matter."""


def print_conversations(place: Path, wanted: Wanted, *, full: bool, as_json: bool) -> None:
    """Print conversations.

    Args:
        place: a run folder, a folder of dumps, or one dump.
        wanted: which of them.
        full: do not cut long messages.
        as_json: one record per line in place of text, without tokens.

    Raises:
        UserInputError: no dump is found, or it cannot be read.
    """
    found = find_dumps(place, wanted.kind, wanted.step)
    files = list(found.values()) if wanted.all_steps else [found[max(found)]]
    console = Console(soft_wrap=True, highlight=False)
    for title, records, many in _chosen(files, wanted):
        if as_json:
            for record in records:
                print_json(record, indent=None)
            continue
        count = f"{len(records)} of {many}" if len(records) < many else str(many)
        console.print(Text(f"{title}: {count}", "bold"))
        for record in records:
            console.print()
            console.print(Text(f"{heading(record)}  [{visible(record['from'])}]", "reverse"))
            for piece in conversation_lines(record, None if full else MOST_CHARACTERS):
                console.print(piece)
        console.print()


def _chosen(files: Sequence[Path], wanted: Wanted) -> Iterator[tuple[str, list[Record], int]]:
    """A title, its conversations, and how many there are of the kind."""
    if wanted.failed:
        lost = [{**record, "from": file.name} for file in files for record in failed_trajectories(file)]
        lost = [record for record in lost if _says(record, wanted.text)]
        yield "failed, so left out of training", lost, len(lost)
        if not wanted.worst and not wanted.best:
            return
    worst, best = (wanted.worst, wanted.best) if wanted.worst or wanted.best else (USUAL, USUAL)
    every = [
        {**record, "from": f"{file}:{record['line']}"}
        for file in files
        for record in read_conversations(file)
        if _says(record, wanted.text)
    ]
    if len(every) <= worst + best:
        yield "all", sorted(every, key=_score), len(every)
        return
    if worst:
        yield "worst", heapq.nsmallest(worst, every, key=_score), len(every)
    if best:
        yield "best", heapq.nlargest(best, every, key=_score), len(every)


def _score(record: Record) -> float:
    return float(record["score"])


def _says(record: Record, text: str | None) -> bool:
    if text is None:
        return True
    said = "\n".join(piece.plain for piece in conversation_lines(record))
    return text.casefold() in said.casefold()
