"""`agentrl check --grader`: tries the run's score function on right and wrong answers before anything is trained."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agentrl.cli.train import split_arguments
from agentrl.config import RunConfig, load_config
from agentrl.data.dataset import RLHFDataset
from agentrl.errors import UserInputError
from agentrl.rewards.gold import GradedRow, grade_golds
from agentrl.rewards.judged_answers import load_answer_scores
from agentrl.rewards.loading import scores_by_source

_SHOWN_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class GradedSource:
    """The rows of one data source, scored."""

    key: str
    """`train` or `val`."""
    source: str
    rows: list[GradedRow]
    problems: list[str]
    """Why the score function cannot be trained with."""


def check_grader(config: str, overrides: list[str], rows: int | None) -> None:
    """Score the right answer of each row, another row's and an empty one, and print the verdict.

    Args:
        config: recipe of a run, or its first override.
        overrides: `key=value` each.
        rows: at most this many rows of the training files and of the validation files; None: all.

    Raises:
        UserInputError: the recipe, a row or the score function cannot be used, or the run calls no score function.
        typer.Exit: code 1 if a right answer does not score more than a wrong one.
    """
    resolved = load_config(*split_arguments(config, overrides))
    if resolved.reward_model.combine.outcome == 0 and not resolved.reward_model.has_judge:
        raise UserInputError("reward_model.combine.outcome is 0: this run calls no score function")
    console = Console()
    table = Table("files", "data source")
    for title in ("rows", "right answer", "another row's", "empty"):
        table.add_column(title, justify="right")
    problems, checked = [], False
    for graded in grade_sources(resolved, rows):
        checked |= any(row.answer is not None for row in graded.rows)
        table.add_row(graded.key, graded.source, str(len(graded.rows)), *_means(graded.rows))
        problems += graded.problems
    console.print(table)
    for problem in problems[:_SHOWN_PROBLEMS]:
        console.print(problem, markup=False, highlight=False, soft_wrap=True)
    if len(problems) > _SHOWN_PROBLEMS:
        console.print(f"and {len(problems) - _SHOWN_PROBLEMS} more", highlight=False)
    if problems:
        console.print("unusable", style="bold red")
        raise typer.Exit(1)
    if not checked:
        raise UserInputError("no row holds a right answer to check with: give it as `extra_info.answer`")
    console.print("usable", style="green")


def grade_sources(config: RunConfig, rows: int | None) -> Iterator[GradedSource]:
    """Try the score function on the rows of each data source.

    Args:
        config: the run.
        rows: at most this many of the training files and of the validation files; None: all.

    Raises:
        UserInputError: a row or the score function cannot be used.
    """
    for key, files in (("train", config.data.train_files), ("val", config.data.val_files)):
        if not files:
            continue
        dataset = RLHFDataset(files, config.data, rows or -1, sees_pictures=True)
        for source, group in groupby(_grade(dataset, config), key=lambda row: row.sample.data_source):
            graded = list(group)
            problems = [f"data.{key}_files, data_source '{source}': {text}" for text in _judge(graded)]
            problems += [f"{dataset.place(row.sample)}: {_problem(row)}" for row in graded if row.problem]
            yield GradedSource(key, source, graded, problems)


def _grade(dataset: RLHFDataset, config: RunConfig) -> list[GradedRow]:
    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("scoring", total=len(dataset))
        samples = (dataset[position] for position in range(len(dataset)))
        manager = load_answer_scores(config)
        built_in = scores_by_source(config) and config.reward_model.combine.outcome != 0

        async def grade() -> list[GradedRow]:
            async with aclosing(manager):
                return await grade_golds(samples, manager, lambda: bars.advance(task), built_in=built_in)

        return asyncio.run(grade())


def _means(rows: Sequence[GradedRow]) -> list[str]:
    columns = ([row.gold for row in rows], [row.other for row in rows], [row.empty for row in rows])
    known = [[score for score in column if score is not None] for column in columns]
    return [f"{fmean(scores):.3f}" if scores else "-" for scores in known]


def _problem(row: GradedRow) -> str:
    return f"{row.problem}; the right answer was {row.answer!r:.100}" if row.answer is not None else str(row.problem)


def _judge(rows: Sequence[GradedRow]) -> list[str]:
    """Problems of all rows of one source together."""
    known = [(row.gold, row.other) for row in rows if row.gold is not None and row.other is not None]
    if known and fmean(other for _, other in known) >= fmean(gold for gold, _ in known):
        return ["the answers of other rows score as high as the right ones"]
    return []
