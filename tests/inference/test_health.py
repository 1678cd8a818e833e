"""Paused engines are well, hung ones are not; weight updates beside running requests. Against the embedded engine."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from engine_servers import serve_embedded

from agentrl.errors import EngineError, EngineRequestError
from agentrl.inference import client as engine_client
from agentrl.inference.client import EngineClient
from agentrl.inference.health import is_well, is_well_now, quick_client
from agentrl.testing.scripted_engine import ScriptedEngine


@pytest.fixture(scope="module")
def server(
    tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, subprocess.Popen[Any]]]:
    with serve_embedded(tiny_model_dir, tmp_path_factory.mktemp("log"), "--max-context-length", "410") as running:
        yield running


@pytest.fixture
async def client(server: tuple[str, subprocess.Popen[Any]]) -> AsyncIterator[EngineClient]:
    client = EngineClient(server[0], vocab_size=261)
    yield client
    await client.resume()
    await client.close()


LONG = {"max_new_tokens": 400, "temperature": 1.0, "ignore_eos": True}


async def runs(client: EngineClient) -> None:
    """Wait until a request runs."""
    async with httpx.AsyncClient(trust_env=False) as http:
        while not (await http.get(f"{client.address}/server_info")).json()["internal_states"][0]["num_running_reqs"]:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("mode", ["in_place", "retract", "abort"])
async def test_a_paused_engine_is_well_whoever_paused_it(client: EngineClient, mode: str) -> None:
    await client.pause(mode)
    other = EngineClient(client.address, vocab_size=261)
    assert await other.health()
    await other.close()
    with httpx.Client(trust_env=False, timeout=25) as http:
        assert is_well_now(http, client.address, "/health")
    await client.resume()
    assert await client.health()


@pytest.mark.parametrize("paused", [False, True])
async def test_a_stopped_engine_is_ill(
    client: EngineClient, server: tuple[str, subprocess.Popen[Any]], paused: bool
) -> None:
    if paused:
        await client.pause()
    impatient = EngineClient(client.address, vocab_size=261, request_timeout_s=1.0)
    process = psutil.Process(server[1].pid)
    process.suspend()
    try:
        assert not await impatient.health()
        with httpx.Client(trust_env=False, timeout=0.5) as http:
            assert not is_well_now(http, client.address, "/health")
    finally:
        process.resume()
        await impatient.close()
    assert await client.health()


@pytest.mark.parametrize(
    ("answers", "well"),
    [
        ({"/ready": [503, 503], "/health": [200]}, True),  # paused
        ({"/ready": [503], "/health": [503]}, False),  # starting, or hung
        ({"/ready": [503, 200], "/health": [200, 503]}, False),  # its scheduler answers, and samples nothing
        ({"/ready": [503, 200], "/health": [200, 200]}, True),  # was ill before
        ({"/ready": [404], "/health": [200]}, True),
        ({"/ready": [200], "/health": [503]}, False),
        ({"/ready": [0], "/health": [0]}, False),
    ],
)
async def test_what_the_answers_say(answers: dict[str, list[int]], well: bool) -> None:
    async def status(path: str) -> int:
        if path == "/server_info":
            return 200
        return answers[path].pop(0)

    assert await is_well(status, "/health") is well
    assert not any(answers.values())


@pytest.mark.parametrize("paused", [None, "in_place", "retract"])
async def test_weights_change_under_a_running_request(
    client: EngineClient, tiny_model_dir: Path, paused: str | None
) -> None:
    """SGLang would wait for it, or, paused in place, could not drop the cache: the client retracts it first."""
    running = asyncio.create_task(client.generate([1, 2], LONG))
    await runs(client)
    if paused:
        await client.pause(paused)
    await client.update_weights_from_disk(str(tiny_model_dir), 3)
    assert await client.weight_version() == 3
    if paused:
        assert not running.done()
        await client.resume()
    output = await running
    assert (len(output.token_ids), output.weight_versions[-1]) == (400, 3)
    assert output.weight_versions[0] != 3 or paused is None
    await client.update_weights_from_disk(str(tiny_model_dir), 0)


async def test_a_refused_update_leaves_no_pause_behind(client: EngineClient, tmp_path: Path) -> None:
    with pytest.raises(EngineRequestError):
        await client.update_weights_from_disk(str(tmp_path / "nothing"), 4)
    assert (await client.generate([1], {"max_new_tokens": 1})).token_ids


async def test_an_engine_that_is_silent_in_an_update_is_left_in_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "_LAST_WORD_S", 0.1)
    engine = ScriptedEngine(lambda _: ([1], "stop"))
    await engine.start()
    client = EngineClient(engine.address, vocab_size=10, request_timeout_s=600, update_timeout_s=0.2)
    engine.silent.add("/update_weights_from_disk")
    with pytest.raises(EngineError, match=r"/update_weights_from_disk gave no answer within 0\.2 s"):
        await client.update_weights_from_disk("folder", 1)
    await client.close()
    await engine.stop()


def test_certificates_are_loaded_once_and_always_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[ssl.SSLContext] = []
    plain = httpx.Client
    monkeypatch.setattr(ssl, "create_default_context", ssl.create_default_context.__wrapped__)  # not as tests have it

    def client(**options: Any) -> httpx.Client:
        used.append(options["verify"])
        return plain(**options)

    monkeypatch.setattr(httpx, "Client", client)
    for _ in range(2):
        quick_client(1.0).close()
    assert used[0] is used[1]
    assert used[0].verify_mode is ssl.CERT_REQUIRED
    assert used[0].check_hostname
