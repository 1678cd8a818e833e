"""One sandbox service for the tests of this folder, checked after each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sandbox_service import Server, serve


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    with serve(environment={"A_SECRET": "sesame"}) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The service; whatever a test does, it must serve afterwards and leave nothing on the machine."""
    yield shared_server
    shared_server.must_be_clean()
    assert shared_server.python("print(6 * 7)")["stdout"] == "42\n"
