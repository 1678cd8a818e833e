"""What is asked about the machines of a cluster where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from agentrl.single_controller import ray_machines
from agentrl.single_controller.ray_backend import RayBackend


def test_a_process_that_is_not_connected_starts_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most calls of Ray's API start a cluster first, which nobody would end."""

    def init(*_: Any, **__: Any) -> None:
        raise AssertionError("Ray starts by itself")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    node = "3f2a1b2c" * 7
    assert ray_machines.alive() == []
    assert ray_machines.answering() == []
    assert not ray_machines.several()
    assert ray_machines.lost_machine(node) is None
    assert ray_machines.machine_name(node) == "unknown (Ray node 3f2a1b2c)"
    group = RayBackend.__new__(RayBackend)
    group._actors = []
    group.shutdown()
