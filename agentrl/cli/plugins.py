"""`agentrl plugins`: lists the plug-ins that a run can name and their origins, and checks one against its contract."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="List all named plug-ins, their origins, and why one cannot be loaded; `check` tests one.")
CHECKER = "agentrl.testing.plugin_check"
"""Imported by name: the test kit imports the core, and the core runs without it."""

Imports = Annotated[
    list[str] | None,
    typer.Option("--import", help="Module or Python file that registers plug-ins, imported first; may be repeated."),
]


@app.callback(invoke_without_command=True)
def plugins(context: typer.Context, imports: Imports = None) -> None:
    """List plug-ins."""
    from agentrl.plugins import load_registrations

    load_registrations(imports or [])
    if context.invoked_subcommand is None:
        _list()


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="Name, dotted path or file.py:Name; with --file a name in that file.")],
    kind: Annotated[
        str | None,
        typer.Option(
            help="agent_loops, tools, interactions, rewards, tool_parsers, advantages or policy_losses; default: "
            "recognised."
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Tool, interaction or agent-loop YAML that configures it.")] = None,
    example: Annotated[
        str,
        typer.Option(
            help='Input to try it with, as JSON: {"arguments": {...}, "create_kwargs": {...}} for a tool, '
            '{"interaction_kwargs": {...}, "messages": [...]} for an interaction, {"solution_str": ..., '
            '"ground_truth": ...} for a score function.'
        ),
    ] = "{}",
) -> None:
    """Run the contract tests on one plug-in; exit code 1 if a clause is broken."""
    from rich.console import Console
    from rich.table import Table

    kit = importlib.import_module(CHECKER)
    found, verdicts = kit.check_plugin(name, kind, file, _read(example))
    table = Table("", f"contract of {found}", "problem", title=name, title_justify="left")
    for verdict in verdicts:
        mark = "[green]pass[/]" if verdict.problem is None else "[red]FAIL[/]"
        table.add_row(mark, verdict.demand, _plain(verdict.problem or ""))
    Console().print(table)
    broken = sum(verdict.problem is not None for verdict in verdicts)
    typer.echo(f"{name}: {len(verdicts) - broken} of {len(verdicts)} hold")
    if broken:
        raise typer.Exit(1)


def _list() -> None:
    from rich.console import Console
    from rich.table import Table

    from agentrl.plugins import catalogue

    table = Table("kind", "name", "origin")
    table.add_column("what it is", overflow="fold")
    found = catalogue()
    for info in found:
        target = _plain(info.target) if info.problem is None else f"[red]cannot be loaded:[/] {_plain(info.problem)}"
        if info.file is not None and not info.target.startswith("agentrl."):
            target += f"\n{_plain(info.file)}"
        table.add_row(info.kind, info.name, _plain(info.origin), target)
    Console().print(table)
    broken = [info.name for info in found if info.problem is not None]
    if broken:
        typer.echo(f"{len(broken)} of {len(found)} cannot be loaded: {', '.join(broken)}")


def _read(example: str) -> dict[str, Any]:
    from agentrl.errors import UserInputError

    try:
        value = json.loads(example)
    except ValueError as error:
        raise UserInputError(f"--example is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UserInputError(f"--example: got {type(value).__name__}, wanted a JSON object")
    return value


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
