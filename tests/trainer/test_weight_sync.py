"""Where exports go, and that none outlives its run. The way to real engines is in tests/e2e."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from agentrl.errors import EngineRequestError, EngineTimeout, EngineUnavailable, WeightVersionError
from agentrl.inference.adapter_client import ADAPTER_NAME, AdapterClient
from agentrl.inference.client import EngineClient
from agentrl.leftovers import owned_prefix
from agentrl.testing.scripted_engine import ScriptedEngine
from agentrl.trainer.weight_sync import WeightSync


class Exporter:
    """Stands where the actor's worker group stands: writes one small file."""

    def __init__(self) -> None:
        self.exports: list[str] = []

    def export_weights(self, folder: str) -> None:
        self.exports.append(folder)
        Path(folder).mkdir()
        save_file({"w": torch.zeros(2)}, Path(folder) / "model.safetensors")

    def export_adapter(self, folder: str) -> None:
        self.exports.append(folder)
        Path(folder).mkdir()


def make(parent: Path, actor: Any, mode: str = "disk") -> WeightSync:
    def client(address: str) -> EngineClient:
        kind = AdapterClient if mode == "adapter" else EngineClient
        return kind(address, vocab_size=10, request_timeout_s=5, retries=0)

    return WeightSync(actor, client, mode=mode, folder=parent, model_bytes=8)


def test_exports_of_killed_runs_are_removed_and_the_own_one_goes_with_its_run(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    name = owned_prefix("agentrl-weights")
    dead = tmp_path / f"{name.replace(str(os.getpid()), str(process.pid), 1)}x"
    alive = tmp_path / f"{name}y"
    for folder in (dead, alive):
        folder.mkdir()
    sync = make(tmp_path, Exporter())
    assert not dead.exists()
    assert len(list(tmp_path.iterdir())) == 2
    sync.close()
    assert list(tmp_path.iterdir()) == [alive]


@pytest.fixture
async def engine():
    engine = ScriptedEngine(lambda payload: ([1], "stop"))
    await engine.start()
    yield engine
    await engine.stop()


async def test_a_version_is_pushed_and_confirmed(engine: ScriptedEngine, tmp_path: Path):
    actor = Exporter()
    sync = make(tmp_path, actor)
    await in_thread(sync, 3, engine.address)
    assert engine.weight_version == "3"
    assert not Path(actor.exports[0]).exists()


async def test_an_engine_without_a_cache_does_not_go_on(engine: ScriptedEngine, tmp_path: Path):
    """On shared GPUs it gets its cache back once the ranks have left: SGLang ends at a health check before that."""
    sync = make(tmp_path, Exporter())
    assert await asyncio.to_thread(sync.sync, 3, [engine.address], resume=False) == [engine.address]
    assert (engine.weight_version, engine.paused) == ("3", True)
    await in_thread(sync, 4, engine.address)
    assert not engine.paused


async def test_nobody_home_is_an_error_and_one_of_two_is_not(engine: ScriptedEngine, tmp_path: Path):
    sync = make(tmp_path, Exporter())
    with pytest.raises(EngineUnavailable):
        await in_thread(sync, 1, "http://127.0.0.1:9")
    await in_thread(sync, 2, "http://127.0.0.1:9", engine.address)
    assert engine.weight_version == "2"


async def test_a_server_that_hangs_is_left_out(engine: ScriptedEngine, tmp_path: Path, monkeypatch):
    """Whether at the update or when it is asked for its version."""
    hanging = ScriptedEngine(lambda payload: ([1], "stop"))
    await hanging.start()
    sync = make(tmp_path, Exporter())
    for number, call in enumerate(("update_weights_from_disk", "weight_version"), start=1):
        good = getattr(EngineClient, call)

        async def hang(client: EngineClient, *arguments: Any, good: Any = good) -> Any:
            if client.address == hanging.address:
                raise EngineTimeout(f"{client.address} gave no answer within 5 s")
            return await good(client, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(EngineClient, call, hang)
            assert await in_thread(sync, number, hanging.address, engine.address) == [engine.address]
            with pytest.raises(EngineUnavailable, match=r"no engine took the new weights: .* no answer within 5 s"):
                await in_thread(sync, number, hanging.address)
    await hanging.stop()


async def test_a_server_that_keeps_another_version_is_told(engine: ScriptedEngine, tmp_path: Path, monkeypatch):
    async def stubborn(self: EngineClient) -> int:
        return 7

    monkeypatch.setattr(EngineClient, "weight_version", stubborn)
    with pytest.raises(WeightVersionError, match="serves weight version 7 after an update to 1"):
        await in_thread(make(tmp_path, Exporter()), 1, engine.address)


async def test_a_server_that_refuses_is_left_out_and_alone_it_is_an_error(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch
):
    accept = EngineClient.update_weights_from_disk
    refuser = ScriptedEngine(lambda payload: ([1], "stop"))
    await refuser.start()

    async def update(self: EngineClient, path: str, weight_version: int) -> None:
        if self.address == refuser.address:
            raise EngineRequestError("wrong shapes")
        await accept(self, path, weight_version)

    monkeypatch.setattr(EngineClient, "update_weights_from_disk", update)
    sync = make(tmp_path, Exporter())
    assert await in_thread(sync, 1, engine.address, refuser.address) == [engine.address]
    assert (engine.paused, refuser.paused) == (False, True)
    with pytest.raises(EngineRequestError, match="wrong shapes"):
        await in_thread(sync, 2, refuser.address)
    await refuser.stop()


async def in_thread(sync: WeightSync, version: int, *addresses: str) -> list[str]:
    """`sync` runs an event loop of its own, beside the one that serves the scripted engine."""
    return await asyncio.to_thread(sync.sync, version, list(addresses))


async def test_engines_load_the_adapter_in_place_of_the_last_one(tmp_path: Path):
    """SGLang's requests: a name is unloaded before it is loaded again, and the version is named by itself."""
    engine = ScriptedEngine(lambda _: ([1, 2], "length"))
    address = await engine.start()
    sync = make(tmp_path, Exporter(), "adapter")
    for version in (3, 4):
        assert await asyncio.to_thread(sync.sync, version, [address]) == [address]
        assert engine.weight_version == str(version)
    name = ADAPTER_NAME
    calls = [{"path": "/unload_lora_adapter", "lora_name": name}, {"path": "/load_lora_adapter", "lora_name": name}]
    assert [{k: v for k, v in call.items() if k != "lora_path"} for call in engine.adapter_calls] == calls * 2
    assert engine.adapters[name].endswith("version_4")
    client = AdapterClient(address, vocab_size=10)
    assert (await client.generate([1], {"max_new_tokens": 2})).token_ids == [1, 2]
    assert engine.requests[-1]["lora_path"] == name
    engine.adapters.clear()
    with pytest.raises(EngineRequestError, match="the LoRA adapter is not loaded"):
        await client.generate([1], {"max_new_tokens": 2})
    await client.close()
    sync.close()
    await engine.stop()
