"""Errors at the command line: one readable message and the exit code of `agentrl.errors`; Ctrl-C is 130."""

from __future__ import annotations

import traceback
from typing import Any

import typer
from typer.core import TyperGroup

from agentrl.errors import AgentRLError

INTERRUPTED = 130

_settings = {"debug": False}


def set_debug(debug: bool) -> None:
    """Whether the traceback of an `AgentRLError` is shown too."""
    _settings["debug"] = debug


class ErrorGroup(TyperGroup):
    """The root command: agentrl's own errors become messages; any other exception is a bug and keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a subcommand."""
        try:
            return super().invoke(ctx)
        except AgentRLError as error:
            if _settings["debug"]:
                typer.echo(traceback.format_exc(), err=True)
            typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
            typer.echo(str(error), err=True)
            raise typer.Exit(error.exit_code) from error
        except (KeyboardInterrupt, typer.Abort) as error:  # a command inside a command turns the first into the second
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from error
