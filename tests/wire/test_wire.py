"""Both services answer every recorded request of their protocols in the recorded structure."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from replay import differences, recordings, replay
from service_process import serve


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, httpx.Client]]:
    with serve("retrieval") as retrieval, serve("sandbox") as sandbox:
        services = {"retrieval": retrieval, "sandbox": sandbox}
        yield {name: httpx.Client(base_url=each.url, timeout=30, trust_env=False) for name, each in services.items()}


@pytest.mark.parametrize("service", ["retrieval", "sandbox"])
def test_recordings(clients: dict[str, httpx.Client], service: str) -> None:
    with clients[service] as client:
        installed = client.get("/health").json().get("languages", [])
        kept: dict[str, str] = {}
        problems = {
            exchange["name"]: found
            for exchange in recordings(service)
            if exchange.get("needs") in (None, *installed) and (found := replay(client, exchange, kept))
        }
    assert not problems


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"b": 1, "a": 1}, {"a": 1, "b": 1}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1, "b": None}, {"a": 1}),
        ({"a": True}, {"a": 1}),
        ([1, 2], [2, 1]),
        ([1], [1, 1]),
        ([1, 1, 2], [1, "..."]),
        ([], [1, "..."]),
        (None, "<str>"),
        (1, "<float>"),
        ("a", "<has b>"),
        ("Title\ntext", "<titled>"),
        ({}, "<texts>"),
    ],
)
def test_a_deviation_is_seen(given: object, wanted: object) -> None:
    assert differences(given, wanted)
