"""`agentrl check`: what a chat template supports, and proof that the trained tokens of a run's dumps were sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from agentrl.errors import UserInputError
from agentrl.observability.wording import visible
from agentrl.yaml_reader import parse_flow

_STYLES = {"ok": "green", "note": "yellow", "unusable": "bold red"}
_SHOWN_VIOLATIONS = 20


def check_template(
    model: str, *, tools: str | None, chat_template: str | None, tokenizer: str | None, kwargs: Sequence[str]
) -> None:
    """Print the conformance table of a template.

    Args:
        model: a model or tokenizer folder, or a `.jinja` file with `tokenizer`.
        tools: tool YAML that a run would offer.
        chat_template: `.jinja` file instead of the model's own.
        tokenizer: folder of the tokenizer, if `model` has none.
        kwargs: `key=value` variables of the template.

    Raises:
        UserInputError: an argument cannot be used.
        typer.Exit: code 1 if a run cannot work with the template.
    """
    from agentrl.chat.conformance import conformance
    from agentrl.chat.loading import load_renderer

    if model.endswith(".jinja"):
        if tokenizer is None:
            raise UserInputError(f"{model} is only a template: give a tokenizer folder with --tokenizer")
        model, chat_template = tokenizer, model
    renderer = load_renderer(model, tokenizer, chat_template, _variables(kwargs))
    result = conformance(renderer, _schemas(tools))
    console = Console()
    table = Table("", "", "", title=f"chat template of {escape(chat_template or model)}", show_header=False)
    for line in result.lines:
        table.add_row(line.topic, Text(line.verdict.value, _STYLES[line.verdict.value]), escape(line.text))
    console.print(table)
    for diff in result.report.differences:
        console.print(
            f"first difference when a {diff.after} message follows {diff.turn}: token {diff.position} is "
            f"{diff.canonical_token!r} in the rendering, the model had {diff.stream_token!r}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        console.print(f"    stream    …{diff.stream_text!r}…", markup=False, highlight=False, soft_wrap=True)
        console.print(f"    rendering …{diff.canonical_text!r}…", markup=False, highlight=False, soft_wrap=True)
    console.print("usable" if result.usable else "unusable", style=_STYLES["ok" if result.usable else "unusable"])
    if not result.usable:
        raise typer.Exit(1)


def check_rollouts(place: Path, step: int | None, limit: int) -> None:
    """Audit dumped rollouts and print some of them, coloured by mask.

    Args:
        place: a dump, or the folder of `trainer.rollout_data_dir`.
        step: only this step of a folder.
        limit: how many trajectories to print; all are checked.

    Raises:
        UserInputError: no dump is found.
        typer.Exit: code 1 if a trajectory breaks a rule.
    """
    from agentrl.observability.audit import audit
    from agentrl.observability.dumps import find_dumps

    console = Console()
    files = find_dumps(place, step=step).values()
    trajectories, violations, versions = 0, 0, Counter[int]()
    for result in audit(files):
        if trajectories < limit or (result.violations and violations < _SHOWN_VIOLATIONS):
            _show_trajectory(console, result)
        for violation in result.violations[: max(_SHOWN_VIOLATIONS - violations, 0)]:
            console.print(f"{violation}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        trajectories += 1
        violations += len(result.violations)
        versions.update(result.trained_by)
    trained = ", ".join(f"{count} by weight version {version}" for version, count in sorted(versions.items()))
    summary = f"{trajectories} trajectories in {len(files)} dumps; trained tokens: {trained or 'none'}"
    console.print(summary, highlight=False, soft_wrap=True)
    if violations:
        console.print(f"{violations} violations", style=_STYLES["unusable"], highlight=False)
        raise typer.Exit(1)
    console.print("every trained token was sampled", style=_STYLES["ok"])


def _show_trajectory(console: Console, result: Any) -> None:
    """Print one trajectory: trained tokens green, sampled but untrained ones yellow, the rest dim."""
    styles = {"trained": "green", "sampled": "yellow", "observed": "dim"}
    record = result.record
    title = f"{result.file.name}:{result.line}  score {record.get('score')}  {record.get('stop_reason', '')}"
    console.rule(Text(visible(title)))
    text = Text()
    if isinstance(record.get("input"), str):
        text.append(visible(record["input"]), "dim")
    for kind, count, piece in result.segments:
        if not console.is_terminal:  # without colours, mark each segment in the text
            text.append(f"⟦{kind} {count}⟧")
        text.append(visible(piece), styles[kind])
    console.print(text, soft_wrap=True)


def _variables(pairs: Sequence[str]) -> dict[str, Any]:
    variables = {}
    for pair in pairs:
        name, found, value = pair.partition("=")
        if not found or not name:
            raise UserInputError(f"--kwargs {pair}: wanted key=value, for example enable_thinking=false")
        try:
            variables[name] = parse_flow(value)
        except ValueError as error:
            raise UserInputError(f"--kwargs {pair}: {error}") from error
    return variables


def _schemas(tools: str | None) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    from agentrl.plugins import load_tools

    return [tool.schema for tool in load_tools(tools)]
