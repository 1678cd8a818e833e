"""The scripted engine: its end, as a killed process's, and answers that take their time."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from agentrl.inference.client import EngineClient
from agentrl.testing.scripted_engine import ScriptedEngine


@pytest.mark.parametrize("steps_later", range(4))
async def test_clients_that_connect_as_it_stops_leave_no_socket(
    steps_later: int, recwarn: pytest.WarningsRecorder
) -> None:
    """Unclosed sockets warn when they are collected, in whatever test runs then."""
    engine = ScriptedEngine(lambda payload: ([5], "stop"))
    port = int((await engine.start()).rpartition(":")[2])
    clients = [socket.socket() for _ in range(16)]
    for client in clients:
        client.setblocking(False)
        assert client.connect_ex(("127.0.0.1", port)) in (0, 115)  # EINPROGRESS
    for _ in range(steps_later):
        await asyncio.sleep(0)
    await engine.stop()
    for client in clients:
        client.close()
    await asyncio.sleep(0.01)
    gc.collect()
    assert [str(w.message) for w in recwarn] == []


async def test_each_request_takes_the_time_that_it_is_given() -> None:
    answered: list[str] = []
    engine = ScriptedEngine(lambda payload: ([5], "stop"), latency_s=lambda payload: 0.2 * (payload["rid"] == "slow"))
    client = EngineClient(await engine.start(), vocab_size=10)

    async def ask(rid: str) -> None:
        await client.generate([1], {"max_new_tokens": 4}, rid)
        answered.append(rid)

    await asyncio.gather(ask("slow"), ask("quick"))
    assert answered == ["quick", "slow"]
    await client.close()
    await engine.stop()
