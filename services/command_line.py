"""`agentrl-serve`: the services as programs, for machines that have the distribution `agentrl-services` alone."""

from __future__ import annotations

import sys
from typing import Any

import typer

from agentrl.errors import AgentRLError

_FORWARD: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Each program reads its own arguments."""
app = typer.Typer(help="Run one of agentrl's services.", no_args_is_help=True, add_completion=False)


@app.command(context_settings=_FORWARD)
def sandbox(context: typer.Context) -> None:
    """Run the code sandbox: as `agentrl serve sandbox`."""
    from agentrl.services.sandbox.cli import main as serve

    serve(context.args)


@app.command(context_settings=_FORWARD)
def retrieval(context: typer.Context) -> None:
    """Run a search server: as `agentrl serve retrieval`."""
    from agentrl.services.retrieval.cli import serve

    raise typer.Exit(serve(context.args))


@app.command(context_settings=_FORWARD)
def index(context: typer.Context) -> None:
    """Build a search index: as `agentrl data index`."""
    from agentrl.services.retrieval.cli import index as build

    raise typer.Exit(build(context.args))


def main() -> None:
    """Entry point of the command."""
    try:
        app()
    except AgentRLError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
