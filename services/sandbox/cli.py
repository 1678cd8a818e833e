"""`agentrl serve sandbox`."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated

import typer

from agentrl.services.sandbox.options import SandboxOptions

DEFAULT_PORT = 8080
_DEFAULTS = SandboxOptions()
_app = typer.Typer(add_completion=False)


def main(arguments: list[str]) -> None:
    """Read the command line and serve until told to stop."""
    _app(arguments, prog_name="agentrl serve sandbox", standalone_mode=False)


@_app.command()
def sandbox(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on; other than loopback needs --token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = DEFAULT_PORT,
    token: Annotated[
        str | None,
        typer.Option(envvar="AGENTRL_SERVICE_TOKEN", help="Bearer token that requests must carry.", show_default=False),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Let other machines in without a token.")] = False,
    isolation: Annotated[
        str | None, typer.Option(help="bubblewrap, namespaces or rlimits; else the strongest.")
    ] = None,
    require_isolation: Annotated[
        str | None, typer.Option(help="Start only with this isolation or a stronger one.")
    ] = None,
    allow_weak_isolation: Annotated[
        bool,
        typer.Option(
            "--allow-weak-isolation", help="Start also where code could end this service, or without libseccomp."
        ),
    ] = False,
    fresh_interpreters: Annotated[
        bool, typer.Option("--fresh-interpreters", help="Start an interpreter for each run instead of forking one.")
    ] = False,
    python: Annotated[
        str, typer.Option(help="Interpreter of Python code, with the packages that it may import.", show_default=False)
    ] = _DEFAULTS.python,
    parallel: Annotated[
        int, typer.Option(min=1, max=400, help="Runs at the same time; by default two per core.", show_default=False)
    ] = _DEFAULTS.parallel,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait; more get HTTP 429.")] = _DEFAULTS.queue,
    queue_seconds: Annotated[
        float, typer.Option(min=0, help="How long a request may wait for a place; then it gets HTTP 429.")
    ] = _DEFAULTS.queue_seconds,
    memory_mb: Annotated[int, typer.Option(min=64, help="Memory of a run that asks for none.")] = _DEFAULTS.memory_mb,
    max_memory_mb: Annotated[int, typer.Option(min=64, help="Most that a run may ask for.")] = _DEFAULTS.max_memory_mb,
    max_timeout_s: Annotated[
        float, typer.Option(min=0.1, help="Longest time limit that a run may ask for.")
    ] = _DEFAULTS.max_timeout_s,
    output_mb: Annotated[int, typer.Option(min=1, help="Kept of each output stream.")] = _DEFAULTS.output_mb,
    sessions: Annotated[int, typer.Option(min=0, max=400, help="Sessions open at the same time.")] = _DEFAULTS.sessions,
    session_ttl_s: Annotated[
        float, typer.Option(min=0.1, help="A session ends after this time without a run.")
    ] = _DEFAULTS.session_ttl_s,
) -> None:
    """Run code of models, apart from this machine and from other runs."""
    from agentrl.services.common.access_control import refuse_unprotected_host
    from agentrl.services.common.http_server import exit_on_sigterm, serve_app
    from agentrl.services.sandbox.app import create_app
    from agentrl.services.sandbox.service import check_startup

    refuse_unprotected_host(host, token, insecure)
    names = {each.name for each in fields(SandboxOptions)}
    given = {name: value for name, value in context.params.items() if name in names}
    options = SandboxOptions(**{**given, "max_memory_mb": max(max_memory_mb, memory_mb)})
    with exit_on_sigterm():
        check_startup(options)
        serve_app(create_app(options, token), host, port)
