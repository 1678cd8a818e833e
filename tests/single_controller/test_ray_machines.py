"""What is asked about the machines of a cluster where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from agentrl.errors import WorkerError
from agentrl.single_controller import ray_calls, ray_machines, ray_runtime
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


def test_a_cluster_that_the_environment_names_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_runtime, "_start", lambda *_, **__: None)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    session = ray_runtime.init_ray(num_cpus=1)
    session.owns_connection = False
    session.shutdown()
    assert "RAY_ADDRESS is 10.0.0.1:6379, but without ray_init.address the run starts a private Ray" in caplog.text


def test_a_machine_that_ray_does_not_miss_yet_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no power: the rank beside it finds its connection closed at once, Ray needs half a minute."""
    waits = [(["call 0"], ["call 1"]), ([], ["call 1"])]
    monkeypatch.setattr(ray, "wait", lambda *_, **__: waits.pop(0))
    monkeypatch.setattr(ray_calls, "failure_of", lambda *_: WorkerError("rank 0 of 2: connection closed by peer"))
    lost = {"node 1": "machine 10.0.0.2 (Ray node 3f2a1b2c) was lost"}
    monkeypatch.setattr(ray_calls, "lost_machine", lost.get)
    call = ray_calls.RayCall(["call 0", "call 1"], "Sum", "total", 2, ["node 0", "node 1"])
    with pytest.raises(WorkerError, match=r"^rank 1 of 2 \(Sum\) died in total: machine 10\.0\.0\.2 .* was lost$"):
        call.results()
