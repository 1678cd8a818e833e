"""One model, one set of rows and one engine for all whole runs of the session."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest
from runs import Workspace, started, wait_until

from agentrl.testing.models import build_tiny_model


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Makes recipes of small runs."""
    folder = tmp_path_factory.mktemp("e2e")
    return Workspace(folder, build_tiny_model(folder / "model"))


@pytest.fixture(scope="session")
def engine(workspace: Workspace) -> Iterator[str]:
    """Address of a deterministic engine started with `agentrl serve engine`, for runs that need not start their own."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    options = ["--model", str(workspace.model), "--port", str(port), "--threads", "1", "--device", "cpu"]
    options += ["--max-running-requests", "8", "--max-context-length", "128", "--deterministic"]
    with started("serve", "engine", *options) as process:
        wait_until(lambda: _healthy(address), 60, lambda: process.finish()[1] if process.popen.poll() else "")
        yield address
        process.popen.terminate()
        assert process.finish()[0] in (0, -15)


def _healthy(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
