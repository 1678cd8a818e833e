"""Real servers for the tests of the services."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from agentrl.services.common.http_server import listen

Running = Callable[[FastAPI], AbstractContextManager[httpx.Client]]


@contextmanager
def run_server(app: FastAPI) -> Iterator[httpx.Client]:
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def running() -> Running:
    """`with running(app) as client:` serves an application on a free port."""
    return run_server
