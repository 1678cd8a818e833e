"""What tests of engines share."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.root import RunConfig


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
