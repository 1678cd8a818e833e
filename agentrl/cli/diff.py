"""`agentrl diff`: what two runs were asked to do, how their metrics stand, and what they say to the same prompts."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.cli.output import print_json, table_console
from agentrl.errors import UserInputError, suggest
from agentrl.observability.console import COLUMNS
from agentrl.observability.conversation_text import first_question, last_said
from agentrl.observability.dumps import Record, prompt_of, read_conversations
from agentrl.observability.run_folder import DUMP_KEYS, Kind, Row, RunFolder, differences, open_run
from agentrl.observability.wording import four_digits, one_line, visible

_USUAL = (*COLUMNS.values(), "val-core/*")
_SHOWN = 200
"""Characters of a question or an answer."""


@dataclass(frozen=True, slots=True)
class MetricSpread:
    """A metric of one run over its newest steps."""

    mean: float
    deviation: float | None
    """Between steps; None: of one step."""
    steps: int

    @classmethod
    def of(cls, values: Sequence[float]) -> MetricSpread:
        """Of one value per step."""
        mean = sum(values) / len(values)  # `fmean` raises where a sum is too large for a float
        return cls(mean, _deviation(values) if len(values) > 1 else None, len(values))

    def __str__(self) -> str:
        return four_digits(self.mean) + ("" if self.deviation is None else f" ± {four_digits(self.deviation)}")


@dataclass(frozen=True, slots=True)
class Prompts:
    """What both runs said to the same prompts."""

    files: tuple[Path, Path]
    by_prompt: dict[str, tuple[list[Record], list[Record]]]

    def most_changed(self, many: int) -> list[str]:
        """The prompts whose mean scores differ most; of those that differ as much, the first of the file."""
        return sorted(self.by_prompt, key=lambda prompt: -abs(self.change(prompt)))[:many]

    def change(self, prompt: str) -> float:
        """The mean score of B less that of A."""
        a, b = self.by_prompt[prompt]
        return _mean_score(b) - _mean_score(a)


def diff_runs(
    folders: tuple[Path, Path],
    *,
    last: int,
    metrics: Sequence[str],
    prompts: int,
    step: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Print the differences of two runs.

    Args:
        folders: of run A and run B.
        last: newest steps that metrics are means of.
        metrics: names or patterns of metrics; empty: the usual ones.
        prompts: how many prompts to show with their answers.
        step: whose conversations are compared; None: the newest that both dumped.
        seed: of the bootstrap over prompts.
        as_json: for programs.

    Raises:
        UserInputError: a folder is no run, or no metric has that name.
    """
    a, b = (open_run(folder) for folder in folders)
    keys = differences(a.config, b.config)
    spreads = metric_spreads(a, b, last, metrics)
    same = same_prompts(a, b, step)
    if as_json:
        shown = {
            "config": [dict(zip(("key", "a", "b"), found, strict=True)) for found in keys],
            "metrics": {name: {"a": _json(x), "b": _json(y)} for name, (x, y) in spreads.items()},
            "prompts": None if same is None else _prompts_json(same),
        }
        print_json(shown)
        return
    console = table_console()
    console.print(visible(f"A: {a.path}\nB: {b.path}"), highlight=False, markup=False, soft_wrap=True)
    console.print(_config_table(keys) if keys else "Both have the same configuration.")
    console.print(_metrics_table(spreads, last) if spreads else "They share no metrics.")
    if same is None:
        typer.echo("No conversations of both: trainer.validation_data_dir and trainer.rollout_data_dir write them.")
    else:
        _show_prompts(console, same, prompts, seed)


def metric_spreads(
    a: RunFolder, b: RunFolder, last: int, patterns: Sequence[str]
) -> dict[str, tuple[MetricSpread | None, MetricSpread | None]]:
    """Mean and deviation over the newest steps that have the metric; None: the run has it in no step.

    Raises:
        UserInputError: neither run has a metric of that name.
    """
    rows = a.metrics().rows, b.metrics().rows
    names = list(dict.fromkeys(name for of_run in rows for row in of_run for name in row if name != "step"))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UserInputError(f"--metric {pattern}: neither run has it.{suggest(pattern, names)}")
    chosen = [name for pattern in patterns or _USUAL for name in names if fnmatchcase(name, pattern)]
    return {name: (_spread(rows[0], name, last), _spread(rows[1], name, last)) for name in dict.fromkeys(chosen)}


def same_prompts(a: RunFolder, b: RunFolder, step: int | None) -> Prompts | None:
    """The conversations of one step by prompt: of validation, else of training; None: the runs share none.

    Raises:
        UserInputError: no dump of that step is in both, or a dump is damaged.
    """
    for kind in reversed(DUMP_KEYS):
        both = a.dumps(kind), b.dumps(kind)
        if both[0] and both[1]:
            of_a, of_b = _step_of(both, step, kind)
            by_prompt = _by_prompt(read_conversations(of_a), read_conversations(of_b))
            return Prompts((of_a, of_b), by_prompt)
    return None


def _step_of(both: tuple[dict[int, Path], dict[int, Path]], step: int | None, kind: Kind) -> tuple[Path, Path]:
    """The dumps of the step, else of the newest step of both, else the newest of each.

    Both have step 0, the validation before training, where they share no other: it says nothing about the runs.
    """
    common = both[0].keys() & both[1].keys()
    if step is not None and step not in common:
        have = ", ".join(map(str, sorted(common))) or "none"
        raise UserInputError(f"--step {step}: not both runs have a {kind} dump of it. Both have: {have}")
    chosen = step if step is not None else max(common - {0}, default=None)
    newest = (max(both[0]), max(both[1])) if chosen is None else (chosen, chosen)
    return both[0][newest[0]], both[1][newest[1]]


def _by_prompt(a: Sequence[Record], b: Sequence[Record]) -> dict[str, tuple[list[Record], list[Record]]]:
    found: dict[str, tuple[list[Record], list[Record]]] = defaultdict(lambda: ([], []))
    for place, records in enumerate((a, b)):
        for record in records:
            found[prompt_of(record)][place].append(record)
    return {prompt: pair for prompt, pair in found.items() if all(pair)}


def _spread(rows: Sequence[Row], name: str, last: int) -> MetricSpread | None:
    values = [row[name] for row in rows if name in row][-last:]
    return MetricSpread.of(values) if values else None


def _deviation(values: Sequence[float]) -> float:
    """NaN where a value is not finite, or where no float holds the deviation: `stdev` raises there."""
    try:
        return stdev(values) if all(map(math.isfinite, values)) else math.nan
    except OverflowError:
        return math.nan


def _config_table(keys: Sequence[tuple[str, Any, Any]]) -> Table:
    table = Table("configuration", "A", "B")
    for key, a, b in keys:
        table.add_row(Text(visible(key)), Text(_value(a)), Text(_value(b)))
    return table


def _value(value: Any) -> str:
    return "-" if value is None else one_line(value if isinstance(value, str) else json.dumps(value), 80)


def _metrics_table(spreads: Mapping[str, tuple[MetricSpread | None, MetricSpread | None]], last: int) -> Table:
    table = Table(f"mean ± deviation of the last {last} steps")
    for title in ("A", "B", "B - A", ""):
        table.add_column(title, justify="right")
    for name, (a, b) in spreads.items():
        change = "" if a is None or b is None else f"{b.mean - a.mean:+.4g}"
        clear = "" if a is None or b is None or not is_clear(a, b) else "clear"
        table.add_row(Text(visible(name)), str(a or "-"), str(b or "-"), change, clear)
    return table


def is_clear(a: MetricSpread, b: MetricSpread) -> bool:
    """Whether the means differ by more than two standard errors; steps that learn are not independent: a hint."""
    if a.deviation is None or b.deviation is None:
        return False
    return abs(b.mean - a.mean) > 2 * math.hypot(a.deviation / math.sqrt(a.steps), b.deviation / math.sqrt(b.steps))


def _show_prompts(console: Console, same: Prompts, many: int, seed: int) -> None:
    from agentrl.cli.jobs import show_comparison
    from agentrl.jobs.compare import compare_evaluations, read_scored

    files = visible(f"{same.files[0]} and {same.files[1]}")
    console.print(f"\nThe same prompts: {files}", highlight=False, markup=False)
    if not same.by_prompt:
        typer.echo("They have no prompt in common.")
        return
    show_comparison(console, compare_evaluations(read_scored(same.files[0]), read_scored(same.files[1]), seed))
    for prompt in same.most_changed(many):
        a, b = same.by_prompt[prompt]
        console.print()
        console.print(Text(one_line(first_question(a[0]), _SHOWN), "bold"), soft_wrap=True)
        for name, records in (("A", a), ("B", b)):
            mean = (
                f"{four_digits(_mean_score(records))} of {len(records)}"
                if len(records) > 1
                else four_digits(_score(records[0]))
            )
            console.print(
                Text(f"{name} ({mean}): ", "dim") + Text(one_line(last_said(records[0]), _SHOWN)), soft_wrap=True
            )


def _prompts_json(same: Prompts) -> dict[str, Any]:
    rows = [
        {
            "prompt": prompt,
            "question": first_question(a[0]),
            **{
                name: [{"score": r["score"], "answer": last_said(r)} for r in pair]
                for name, pair in (("a", a), ("b", b))
            },
        }
        for prompt, (a, b) in same.by_prompt.items()
    ]
    return {"a": str(same.files[0]), "b": str(same.files[1]), "prompts": rows}


def _json(spread: MetricSpread | None) -> dict[str, Any] | None:
    return None if spread is None else asdict(spread)


def _score(record: Record) -> float:
    return float(record["score"])


def _mean_score(records: Sequence[Record]) -> float:
    return fmean(map(_score, records))
