"""A sandbox service per level of isolation for the tests of this folder, checked after each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest
from needs import needs_namespaces
from sandbox_service import SERVED, Server, needs_level, serve


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[Callable[[str], Server]]:
    """The service of a level, started when the first test asks for it."""
    with ExitStack() as running:

        @cache
        def server_of(level: str) -> Server:
            return running.enter_context(serve("--isolation", level, environment={"A_SECRET": "sesame"}))

        yield server_of


@pytest.fixture
def quick(shared_servers: Callable[[str], Server]) -> Server:
    """The service of one level, for what is the same at each."""
    return shared_servers(SERVED[-1])


@pytest.fixture
def namespaces() -> None:
    """For tests of what the weakest level does not promise."""
    needs_namespaces()


@pytest.fixture(params=SERVED)
def server(request: pytest.FixtureRequest, shared_servers: Callable[[str], Server]) -> Iterator[Server]:
    """The service; whatever a test does, it must serve afterwards and leave nothing on the machine."""
    needs_level(request.param)
    server = shared_servers(request.param)
    yield server
    server.must_be_clean()
    assert server.python("print(6 * 7)")["stdout"] == "42\n"
