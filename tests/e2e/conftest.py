"""One model, one set of rows and one engine for all whole runs of the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from runs import Workspace, serving

from agentrl.testing.models import build_tiny_model


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Makes recipes of small runs."""
    folder = tmp_path_factory.mktemp("e2e")
    return Workspace(folder, build_tiny_model(folder / "model"))


@pytest.fixture(scope="session")
def engine(workspace: Workspace) -> Iterator[str]:
    """Address of a deterministic engine, for runs that need not start their own."""
    with serving(workspace.model, "--deterministic") as address:
        yield address
