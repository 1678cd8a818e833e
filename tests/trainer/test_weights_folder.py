"""Where weights for engines are written, and what is told where they would not find them."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config.root import RunConfig
from agentrl.inference.weights.group import is_here
from agentrl.trainer import engine_places
from agentrl.trainer.engine_places import weights_folder

FAR = "http://10.9.8.7:30000"


def config_of(**rollout: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "actor_rollout_ref": {"rollout": {"name": "sglang", "server": {"addresses": [FAR]}, **rollout}},
            "trainer": {"device": "cpu", "backend": "local"},
        }
    )


@pytest.mark.parametrize(
    ("rollout", "here", "told"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"weight_sync": "distributed"}, False, False),
        ({"weight_sync_dir": "/shared/weights"}, False, False),
    ],
)
def test_a_server_elsewhere_may_not_find_the_weights(
    rollout: dict[str, Any], here: bool, told: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SGLang would take the folder for a model of the hub, and say that there is none."""
    monkeypatch.setattr(engine_places, "is_here", lambda address: here)
    folder = weights_folder(config_of(**rollout))
    assert (None if folder is None else str(folder)) == rollout.get("weight_sync_dir")
    assert (f"but {FAR} is on another one" in caplog.text) == told


def test_this_machine_is_known_by_its_loopback_address() -> None:
    assert is_here("http://127.0.0.1:30000")
    assert is_here("http://127.0.0.2:30000")
