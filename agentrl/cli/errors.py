"""Errors at the command line: one readable message and the exit code of `agentrl.errors`; 130 after Ctrl-C."""

from __future__ import annotations

import errno
import traceback
from typing import Any

import typer
from typer.core import TyperGroup

from agentrl.errors import AgentRLError, CheckpointError
from agentrl.observability.wording import visible

INTERRUPTED = 130
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_settings = {"debug": False}


def set_debug(debug: bool) -> None:
    """Choose whether the traceback of an `AgentRLError` is also shown."""
    _settings["debug"] = debug


class ErrorGroup(TyperGroup):
    """The root command: agentrl's own errors and a full disk become messages; any other exception is a bug."""

    def invoke(self, ctx: Any) -> Any:
        """Run a subcommand."""
        try:
            return super().invoke(ctx)
        except AgentRLError as error:
            _tell(str(error))
            raise typer.Exit(error.exit_code) from error
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            _tell(f"cannot write {error.filename or 'a file'}: {error.strerror}")
            raise typer.Exit(CheckpointError.exit_code) from error
        except (KeyboardInterrupt, typer.Abort) as error:  # a nested command turns the first into the second
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from error


def _tell(message: str) -> None:
    if _settings["debug"]:
        typer.echo(traceback.format_exc(), err=True)
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(visible(message), err=True)
