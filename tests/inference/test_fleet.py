"""What a fleet does with hosts that are lost: scripted places, no process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError, EngineError, EngineUnavailable
from agentrl.inference import fleet
from agentrl.inference.engine_host import MOST_FAILED_STARTS, HostReport
from agentrl.inference.fleet import EngineFleet
from agentrl.inference.hosts import HostLostError, HostPlace


class Place:
    """A host that is well until it is lost; `room` says where it goes then."""

    is_remote = False

    def __init__(self, index: int) -> None:
        self.index = index
        self.machine: str | None = "10.0.0.1"
        self.lost = False
        self.room: list[str | None] = []
        self.fault: Exception | None = None
        self.move_fault: Exception | None = None
        self.starts = 0
        """So many answers say that it still starts."""
        self.calls: list[str] = []

    def submit(self, method: str) -> Future[Any]:
        self.calls.append(method)
        return Future()

    def result(self, future: Future[Any], timeout_s: float) -> Any:
        if self.lost:
            raise HostLostError(f"engine {self.index} is lost: machine {self.machine} was lost")
        if self.fault is not None:
            raise self.fault
        self.starts, state = max(0, self.starts - 1), "starting" if self.starts else "well"
        return HostReport(self.index, f"http://{self.machine}:{self.index}", state, restarts=self.index)  # type: ignore[arg-type]

    def move(self) -> str | None:
        if self.move_fault is not None:
            raise self.move_fault
        self.machine = self.room.pop(0) if self.room else None
        self.lost = self.machine is None or self.machine == "down"
        return None if self.machine is None else f"machine {self.machine}"

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def places() -> list[Place]:
    return [Place(0), Place(1)]


@pytest.fixture
def start(places: list[Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], EngineFleet]:
    monkeypatch.setattr(fleet, "POLL_S", 0.0)
    config = RunConfig.model_validate(
        {"actor_rollout_ref": {"rollout": {"name": "embedded", "server": {"launch": 2}}}, "trainer": {"device": "cpu"}}
    )

    def make(_config: RunConfig, logs: object) -> list[HostPlace]:
        return list(places)

    return lambda: EngineFleet.start(config, tmp_path, make_places=make)


def test_a_lost_engine_goes_where_there_is_room(
    places: list[Place], start: Callable[[], EngineFleet], caplog: pytest.LogCaptureFixture
) -> None:
    servers = start()
    assert servers.restarts == 1  # that of host 1 itself
    places[1].lost, places[1].room = True, ["10.0.0.3"]
    assert servers.tend() == ["http://10.0.0.1:0", "http://10.0.0.3:1"]
    assert servers.restarts == 1 + 1 + 1  # one before it was lost, the move, and the new host's own
    assert "engine 1 is lost: machine 10.0.0.1 was lost\nStarting it again on machine 10.0.0.3." in caplog.text


@pytest.mark.parametrize("fault", [None, EngineUnavailable("engine 0: Ray does not give it its GPUs")])
def test_without_room_the_run_goes_on_without_it(
    fault: Exception | None, places: list[Place], start: Callable[[], EngineFleet], caplog: pytest.LogCaptureFixture
) -> None:
    servers = start()
    places[0].lost, places[0].move_fault = True, fault
    assert servers.tend() == ["http://10.0.0.1:1"]
    assert "No other machine has room for it: the run goes on without it." in caplog.text
    asked = len(places[0].calls)
    assert servers.tend() == ["http://10.0.0.1:1"]
    assert servers.addresses == ["http://10.0.0.1:0", "http://10.0.0.1:1"]
    assert servers.kept == ["http://10.0.0.1:1"], "nobody asks it to make room for the ranks"
    assert len(places[0].calls) == asked, "it is not asked any more"
    places[1].lost = True
    with pytest.raises(EngineUnavailable, match=r"no engine answers.*:0 \(engine 0 is lost.*:1 \(engine 1 is lost"):
        servers.tend()
    servers.stop()


@pytest.mark.parametrize("wait", [False, True])
def test_engines_that_start_are_waited_for_where_that_is_asked(
    wait: bool, places: list[Place], start: Callable[[], EngineFleet]
) -> None:
    servers = start()
    places[1].starts = 3
    assert len(servers.tend(wait=wait)) == (2 if wait else 1)


def test_an_engine_that_is_lost_again_and_again_is_given_up(
    places: list[Place], start: Callable[[], EngineFleet], caplog: pytest.LogCaptureFixture
) -> None:
    servers = start()
    places[0].lost, places[0].room = True, ["down"] * 9
    for _ in range(MOST_FAILED_STARTS + 1):
        assert servers.tend() == ["http://10.0.0.1:1"]
    assert len(places[0].room) == 9 - MOST_FAILED_STARTS
    assert caplog.text.count("the run goes on without it") == 1


def test_a_machine_without_the_engine_is_no_room(
    places: list[Place], start: Callable[[], EngineFleet], caplog: pytest.LogCaptureFixture
) -> None:
    servers = start()
    places[0].lost, places[0].room = True, ["10.0.0.3"]
    places[0].fault = ConfigError("server.python: no program /x/python is found (on machine 10.0.0.3)")
    assert servers.tend() == ["http://10.0.0.1:1"]
    assert "on machine 10.0.0.3)\nThe run goes on without engine 0." in caplog.text


@pytest.mark.parametrize("error", [HostLostError("engine 0 is lost"), ConfigError("no sglang")])
def test_a_host_that_is_lost_at_the_start_ends_it(
    places: list[Place], start: Callable[[], EngineFleet], error: EngineError | ConfigError
) -> None:
    places[0].fault = error
    with pytest.raises(type(error)):
        start()
    assert all(place.calls[-2:] == ["stop", "close"] for place in places)


def test_a_server_that_this_machine_does_not_reach_is_told_at_the_start(
    places: list[Place], start: Callable[[], EngineFleet]
) -> None:
    """Its own machine finds it healthy."""
    places[1].is_remote, places[1].machine = True, "127.0.0.1"  # type: ignore[misc]
    places[0].machine = "127.0.0.1"
    with pytest.raises(EngineUnavailable, match=r"http://127\.0\.0\.1:0, .*:1: healthy on its own machine, but not"):
        start()
