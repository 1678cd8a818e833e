"""`agentrl replay`: what another score function would have said about dumped conversations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.cli.output import print_json, table_console
from agentrl.config.job_run import load_evaluation
from agentrl.errors import UserInputError
from agentrl.jobs.replay import GroupCounts, Replayed, group_counts, replay_dumps
from agentrl.observability.conversation_text import first_question, last_said
from agentrl.observability.dumps import find_dumps
from agentrl.observability.run_folder import Kind, RunFolder, is_run
from agentrl.observability.wording import four_digits, one_line, visible

_SHOWN = 200
"""Characters of a question or an answer."""
_SHOWN_GROUPS = 5


def replay_command(
    place: Path,
    reward: str,
    overrides: Sequence[str],
    *,
    kind: Kind | None,
    step: int | None,
    examples: int,
    as_json: bool,
) -> None:
    """Score dumps again and print what changes.

    Args:
        place: a run folder, a folder of dumps, or one dump.
        reward: `FILE`, `FILE:name` or the name of a registered function.
        overrides: `key=value` of the score function and the reward manager.
        kind: which of a run's dumps; None: those of training, else those of validation.
        step: only this one.
        examples: how many conversations to show.
        as_json: for programs.

    Raises:
        UserInputError: the dumps or the score function cannot be used, or the run gives the score function no weight.
    """
    files = list(find_dumps(place, kind, step).values())
    path, name = split_reward(reward)
    given = {"path": path, **({"name": name} if name else {})}
    own = [f"custom_reward_function.{key}={json.dumps(value)}" for key, value in given.items()]
    job = load_evaluation(None, [f"data.path={json.dumps(str(files[0]))}", *own, *overrides])
    with _Progress() as progress:
        done = replay_dumps(files, job, _weight(place), progress)
    groups = group_counts(done)
    if as_json:
        print_json(_as_json(done, groups))
        return
    console = table_console()
    scored = f"{len(done)} conversations of {_count(len(files), 'dump')}, scored by {visible(reward)}"
    console.print(scored, highlight=False, markup=False)
    console.print(_table(done))
    _show_groups(console, groups)
    for cause, count in Counter(item.error for item in done if item.error).most_common(3):
        typer.echo(f"no score: {count} x {one_line(str(cause), 300)}")
    _show_examples(console, done, examples)


def split_reward(reward: str) -> tuple[str, str | None]:
    """`FILE` and the name of a function in it: `a/score.py:mine`, `a/score.py`, `package.module:mine`, `my_score`."""
    path, found, name = reward.rpartition(":")
    return (path, name) if found and path and name and "/" not in name else (reward, None)


def _weight(place: Path) -> float:
    """What the run multiplies its outcome with, as far as the dumps' place says."""
    run = next((folder for folder in (place, place.parent, place.parent.parent) if is_run(folder)), None)
    weight = None if run is None else RunFolder(run).setting("reward_model.combine.outcome")
    if weight == 0:
        raise UserInputError(f"{run}: reward_model.combine.outcome is 0, so that no score function counts in this run")
    return float(weight) if isinstance(weight, int | float) else 1.0


def _table(done: Sequence[Replayed]) -> Table:
    table = Table("data source")
    for title in ("conversations", "before", "after", "changed", "up", "down", "no score"):
        table.add_column(title, justify="right")
    by_source: dict[str, list[Replayed]] = {}
    for item in done:
        by_source.setdefault(str(item.record.get("data_source")), []).append(item)
    for source, items in sorted(by_source.items()):
        facts = _facts(items)
        shown = [f"{facts[name]}" if isinstance(facts[name], int) else _mean(facts[name]) for name in facts]
        table.add_row(Text(visible(source)), *shown)
    return table


def _facts(items: Sequence[Replayed]) -> dict[str, Any]:
    after = [item.after for item in items if item.after is not None]
    return {
        "conversations": len(items),
        "before": fmean(item.before for item in items),
        "after": fmean(after) if after else None,
        "changed": sum(item.change != 0 for item in items),
        "up": sum(item.change > 0 for item in items),
        "down": sum(item.change < 0 for item in items),
        "no_score": len(items) - len(after),
    }


def _mean(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _show_groups(console: Console, counts: GroupCounts) -> None:
    turned, tied = counts.reversed, counts.retied
    text = f"{_count(counts.groups, 'group')}: the order changes in {len(turned) + len(tied)}"
    text += f" ({len(turned)} with a pair reversed, {len(tied)} with new or resolved ties)" if turned or tied else ""
    text += f"; {counts.differed} could teach (their scores differ), now {counts.differ}"
    console.print(text, highlight=False, soft_wrap=True)
    if turned:
        names = ", ".join(f"{visible(uid)} of step {step}" for step, uid in turned[:_SHOWN_GROUPS])
        more = f" and {len(turned) - _SHOWN_GROUPS} more" if len(turned) > _SHOWN_GROUPS else ""
        console.print(f"reversed: {names}{more}", highlight=False, markup=False, soft_wrap=True)


def _show_examples(console: Console, done: Sequence[Replayed], many: int) -> None:
    changed = sorted((item for item in done if item.change), key=lambda item: -abs(item.change))
    for item in changed[:many]:
        console.print()
        scores = f"{four_digits(item.before)} -> {four_digits(item.after or 0.0)}"
        console.print(Text(f"{scores}  [{visible(item.place)}]", "reverse"), soft_wrap=True)
        truth = item.record.get("gts")
        told = {"question": first_question(item.record), "answer": last_said(item.record), "ground truth": str(truth)}
        for title, text in told.items():
            console.print(Text(f"{title}: ", "dim") + Text(one_line(text, _SHOWN)), soft_wrap=True)


def _as_json(done: Sequence[Replayed], groups: GroupCounts) -> dict[str, Any]:
    changed = [
        {
            "place": item.place,
            "step": item.record.get("step"),
            "uid": item.record.get("uid"),
            "before": item.before,
            "after": item.after,
            "error": item.error,
        }
        for item in done
        if item.change or item.error
    ]
    return {**_facts(done), "groups": asdict(groups), "changes": changed}


def _count(many: int, what: str) -> str:
    return f"{many} {what}" if many == 1 else f"{many} {what}s"


class _Progress:
    """A bar on a terminal, on stderr; nothing elsewhere."""

    def __enter__(self) -> _Progress:
        from rich.progress import Progress

        self._bars = Progress(
            console=Console(stderr=True), transient=True, disable=not Console(stderr=True).is_terminal
        )
        self._task = self._bars.add_task("scoring", total=None)
        self._bars.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bars.stop()

    def __call__(self, finished: int, total: int) -> None:
        """Show how far it is."""
        self._bars.update(self._task, completed=finished, total=total)
