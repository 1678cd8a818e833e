"""One working folder for all commands of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stage import Stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with pytest.MonkeyPatch.context() as patch:
        stage = Stage(tmp_path_factory.mktemp("stage"), patch)
        yield stage
        stage.close()
