"""Serves the page of runs until Ctrl-C."""

from __future__ import annotations

import re
import secrets
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import uvicorn

from agentrl.errors import UserInputError
from agentrl.observability.viewer.guard import Access, is_local
from agentrl.observability.viewer.runs import RunSet
from agentrl.observability.viewer.server import create_app

_GRACE_S = 1
"""What an open request gets at the end. A page asks every few seconds and waits for nothing long."""
_IN_HEADERS = re.compile("[!-~]+")
"""What cookies and other headers can hold."""
_EVERYWHERE = ("0.0.0.0", "::")


def serve_page(
    paths: Sequence[Path], host: str, port: int, token: str | None, tell: Callable[[str, str], None]
) -> None:
    """Serve the page of runs until Ctrl-C or SIGTERM.

    Args:
        paths: see `RunSet`.
        host: address to listen on; one that other machines reach needs a token.
        port: 0 takes a free one.
        token: None: none on loopback, else a new one, which is printed.
        tell: gets what is served, and its address, once a browser can open it.

    Raises:
        UserInputError: a path is no run, or the address cannot be listened on.
    """
    runs = RunSet(paths)
    if token is None and not is_local(host):
        token = secrets.token_urlsafe(24)
    if token is not None and len(token) < 8:
        raise UserInputError(f"--token: got {len(token)} characters, wanted at least 8")
    if token is not None and not _IN_HEADERS.fullmatch(token):
        raise UserInputError(f"--token: got {token!r}, wanted letters, digits and signs of ASCII, without spaces")
    names = frozenset(name.lower() for name in (socket.gethostname(), socket.getfqdn()))
    app = create_app(runs, Access(host.strip("[]"), names, token))
    with _listen(host, port) as listener:
        address = _address(host, listener.getsockname()[1], token)
        count = len(runs.all())
        tell(f"{count} run{'s' * (count != 1)}", address)
        _serve(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=_GRACE_S), listener)


def _serve(config: uvicorn.Config, listener: socket.socket) -> None:
    server = uvicorn.Server(config)
    # uvicorn raises signals again after a graceful end, to whoever had them before: an end that was asked for is no
    # error.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
        listener.listen()
    except (OSError, OverflowError, UnicodeError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UserInputError(f"cannot listen on {host}:{port}: {reason}") from error
    return listener


def _address(host: str, port: int, token: str | None) -> str:
    """What a user opens."""
    name = socket.gethostname() if host.strip("[]") in _EVERYWHERE else host
    shown = f"[{name}]" if ":" in name and not name.startswith("[") else name
    return f"http://{shown}:{port}/" + (f"?token={quote(token)}" if token is not None else "")
