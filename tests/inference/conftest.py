"""What tests of engines share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentrl.config.root import RunConfig
from agentrl.inference.fleet import EngineFleet


@pytest.fixture
def config(tiny_model_dir: Path) -> RunConfig:
    return RunConfig.model_validate(
        {
            "data": {"max_prompt_length": 200, "max_response_length": 56},
            "actor_rollout_ref": {
                "model": {"path": str(tiny_model_dir)},
                "rollout": {"name": "embedded", "embedded": {"threads": 1, "max_running_requests": 4}},
            },
            "trainer": {"device": "cpu"},
        }
    )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[RunConfig], EngineFleet]]:
    """Starts the servers of a configuration; they end with the test."""
    started: list[EngineFleet] = []

    def start(config: RunConfig) -> EngineFleet:
        started.append(EngineFleet.start(config, tmp_path))
        return started[-1]

    yield start
    for servers in started:
        servers.stop()
