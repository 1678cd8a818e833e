"""How the embedded engine tells whether it is well: as SGLang does, which counts any sign of its scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from agentrl.inference.embedded import health
from agentrl.inference.embedded.frontend import Frontend
from agentrl.inference.embedded.options import EngineOptions
from agentrl.inference.embedded.server import create_app


@pytest.fixture
async def frontend(tiny_model_dir: Path) -> AsyncIterator[Frontend]:
    frontend = Frontend(EngineOptions(model=str(tiny_model_dir), device="cpu", threads=1))
    frontend.start()
    yield frontend
    frontend.engine.stop()


@pytest.fixture
async def client(frontend: Frontend) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(frontend))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=60) as client:
        yield client


async def statuses(client: httpx.AsyncClient) -> list[int]:
    return [(await client.get(path)).status_code for path in ("/health", "/ready", "/ping")]


async def becomes_ill(client: httpx.AsyncClient) -> None:
    """A check ends as failed; the first may still see a sign of what was asked before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health, "TIMEOUT_S", 0.5)
        async with asyncio.timeout(60):
            while await statuses(client) != [503, 503, 503]:
                pass


async def test_a_paused_engine_gives_no_token_but_answers(client: httpx.AsyncClient) -> None:
    assert (await client.get("/model_info")).json()["weight_version"] == "default"
    assert await statuses(client) == [200, 200, 200]
    for mode in ("in_place", "retract", "abort"):
        await client.post("/pause_generation", json={"mode": mode})
        await becomes_ill(client)
        asked = asyncio.create_task(client.get("/health"))
        await asyncio.sleep(0)
        while not asked.done():
            await client.get("/server_info")
        assert (await asked).status_code == 200
        assert [(await client.get(path)).status_code for path in ("/ready", "/ping")] == [503, 200]
        await becomes_ill(client)
        await client.post("/continue_generation", json={})
        assert await statuses(client) == [200, 200, 200]


async def test_an_engine_whose_thread_hangs_is_ill(frontend: Frontend, client: httpx.AsyncClient) -> None:
    release = asyncio.Event()
    loop = asyncio.get_running_loop()
    stuck = frontend.engine.call(lambda: asyncio.run_coroutine_threadsafe(release.wait(), loop).result())
    await becomes_ill(client)
    release.set()
    await asyncio.wrap_future(stuck)
    assert await statuses(client) == [200, 200, 200]
