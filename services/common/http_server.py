"""Run an application until it is told to stop: bind first, finish open requests on SIGTERM, reload on SIGHUP."""

from __future__ import annotations

import contextlib
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from agentrl.errors import UserInputError
from agentrl.services.common.logs import log, set_up_logs

GRACE_S = 10
"""Seconds that open requests get at shutdown."""
KEEP_ALIVE_S = 75
"""Seconds that an idle connection stays open: longer than most clients keep theirs, so that they close it first."""


def listen(host: str, port: int, backlog: int = 2048) -> socket.socket:
    """Take an address, and let clients connect from now on; port 0 takes a free one.

    Raises:
        UserInputError: it cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
        listener.listen(backlog)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UserInputError(f"cannot listen on {host}:{port}: {reason}") from error
    return listener


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Before `serve_app`, SIGTERM ends the block by `SystemExit(0)`, so that nothing it has made so far stays."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt what the first one does
    sys.exit(0)


def raise_open_file_limit() -> None:
    """Open as many files as this process may: the usual limit of 1024 is for programs that use `select`."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve_app(
    app: FastAPI,
    host: str,
    port: int,
    *,
    on_hangup: Callable[[], None] | None = None,
    grace_s: int = GRACE_S,
    backlog: int = 2048,
) -> None:
    """Serve until SIGTERM or SIGINT; then stop listening, finish open requests and return.

    Args:
        app: the application; its lifespan starts and ends with the server.
        host: address.
        port: port; 0 takes a free one, and the log line `serving` says which.
        on_hangup: called in the main thread on SIGHUP; must not wait. None: SIGHUP is taken as SIGTERM.
        grace_s: seconds that open requests get.
        backlog: connections that may wait to be accepted.

    Raises:
        UserInputError: the address is taken.
    """
    set_up_logs()
    raise_open_file_limit()
    with listen(host, port, backlog) as listener:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=grace_s,
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=backlog,
            lifespan="on",
        )
        server = uvicorn.Server(config)
        # uvicorn listens to signals a little later, and raises them again after a graceful end; an end that was asked
        # for is exit code 0.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        if on_hangup is not None:
            signal.signal(signal.SIGHUP, lambda *_: on_hangup())
        bound = listener.getsockname()
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        log(logging.INFO, "serving", url=f"http://{shown}:{bound[1]}", title=app.title)
        server.run(sockets=[listener])
        log(logging.INFO, "stopped", title=app.title)
