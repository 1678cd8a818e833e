"""The address and port of an engine's host: chosen without races, kept, waited for and told."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine_servers import until
from fake_sglang import make_python, starts_of

from agentrl.config.root import RunConfig
from agentrl.errors import EngineUnavailable
from agentrl.inference import engine_host
from agentrl.inference.engine_host import MOST_FAILED_STARTS, EngineHost, Seat
from agentrl.inference.fleet import EngineFleet


def with_made_sglang(config: RunConfig, folder: Path) -> None:
    rollout = config.actor_rollout_ref.rollout
    rollout.name, rollout.server.python = "sglang", str(make_python(folder / "sglang"))


@contextmanager
def a_taken_port(config: RunConfig, folder: Path) -> Iterator[EngineHost]:
    """A host that was started while something else had its port; it is free after the block."""
    with_made_sglang(config, folder)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        config.actor_rollout_ref.rollout.server.port = other.getsockname()[1]
        host = EngineHost(config, Seat(0), folder / "logs" / "engine_0.log")
        with pytest.raises(EngineUnavailable, match="cannot be used"):
            host.start()
        yield host


def test_a_host_keeps_its_port_from_others(
    config: RunConfig, start: Callable[[RunConfig], EngineFleet], tmp_path: Path
) -> None:
    """Also while its server is down: the system gives it to nobody else, and the server that starts again gets it."""
    with_made_sglang(config, tmp_path)
    servers = start(config)
    (place,) = servers._places.values()
    host = place._host  # type: ignore[attr-defined]
    host._close()
    offered = set()
    for _ in range(200):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            offered.add(listener.getsockname()[1])
    assert host._port not in offered
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", host._port))
    before = servers.addresses
    until(lambda: servers.tend() == before)


def test_a_host_whose_port_is_still_taken_gets_it_when_it_is_free(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a new host on the machine of one that died, whose server takes a moment to end."""
    monkeypatch.setattr(engine_host, "BACKOFF_S", 0.25)
    with a_taken_port(config, tmp_path) as host:
        assert host.tend().state == "starting"
        assert not starts_of(tmp_path / "sglang")
    until(lambda: host.tend().state == "well")
    assert host.address == f"http://127.0.0.1:{config.actor_rollout_ref.rollout.server.port}"
    host.stop()


def test_a_host_whose_port_stays_taken_is_given_up(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_host, "BACKOFF_S", 0.0)
    with a_taken_port(config, tmp_path) as host:
        states = [host.tend().state for _ in range(MOST_FAILED_STARTS + 1)]
    host.stop()
    assert states == ["starting"] * MOST_FAILED_STARTS + ["out"]


def test_an_address_of_another_machine_is_told_as_such(config: RunConfig, tmp_path: Path) -> None:
    config.actor_rollout_ref.rollout.server.host = "192.0.2.1"
    with pytest.raises(EngineUnavailable, match=r"on 192\.0\.2\.1 cannot be used .*server\.host to an address of the"):
        EngineFleet.start(config, tmp_path)


@pytest.mark.parametrize(
    ("host", "machine", "expected"),
    [
        ("127.0.0.1", None, ("127.0.0.1", "127.0.0.1")),
        ("0.0.0.0", None, ("0.0.0.0", "127.0.0.1")),
        ("127.0.0.1", "10.0.0.7", ("10.0.0.7", "10.0.0.7")),
        ("localhost", "10.0.0.7", ("10.0.0.7", "10.0.0.7")),
        ("0.0.0.0", "10.0.0.7", ("0.0.0.0", "10.0.0.7")),
        ("192.168.1.4", "10.0.0.7", ("192.168.1.4", "192.168.1.4")),
    ],
)
def test_where_a_server_listens_and_what_others_call_it(host: str, machine: str | None, expected: object) -> None:
    assert Seat(0, machine=machine).addresses(host) == expected
