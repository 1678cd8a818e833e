"""`agentrl view`: the web page of runs."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer


def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...", help="Run folders, or folders of runs; default: outputs.", show_default=False
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that other machines reach needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 0,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="AGENTRL_VIEW_TOKEN",
            help="Token of the page; default: none on this machine alone, else a new one, which is printed.",
        ),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
) -> None:
    """Show runs in the browser: curves, conversations and their tokens, also of runs that go on."""
    from agentrl.observability.viewer.serve import serve_page

    def tell(what: str, address: str) -> None:
        typer.echo(f"{what} at {address} (Ctrl-C ends it)")
        if not no_open and _shows_browser():
            webbrowser.open(address)

    serve_page(runs or [], host, port, token, tell)


def _shows_browser() -> bool:
    """Without a screen, `webbrowser` would start one in the terminal."""
    return sys.platform in ("darwin", "win32") or any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY"))
