"""Pictures in requests to an engine, in SGLang's form: one placeholder each, and the pictures beside the ids."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from agentrl.chat.picture_tokens import PictureTokens
from agentrl.chat.vision import SentPictures
from agentrl.config.root import RunConfig
from agentrl.errors import EngineError
from agentrl.inference import engine_host
from agentrl.inference.client import EngineClient
from agentrl.inference.fleet import EngineFleet
from agentrl.inference.router import Router
from agentrl.pictures import Picture, read_picture
from agentrl.testing.scripted_engine import ScriptedEngine

P = 9
PROMPT = [1, P, P, P, 2, 3, P, 4]
PARAMS = {"max_new_tokens": 8}


def pictures() -> list[Picture]:
    return [read_picture(np.full((8, 8, 3), shade, np.uint8)) for shade in (1, 2)]


def sent() -> SentPictures:
    return SentPictures(PictureTokens(P, (8,), 2), pictures())


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(lambda payload: ([5, 6, 7], "stop"))
    engine.answer_overrides = {"prompt_tokens": len(PROMPT)}
    await engine.start()
    yield engine
    await engine.stop()


async def test_a_request_has_one_placeholder_for_each_picture(engine: ScriptedEngine) -> None:
    client = EngineClient(engine.address, vocab_size=100)
    output = await client.generate(PROMPT, PARAMS, rid="a", pictures=sent())
    await client.close()
    assert output.token_ids == [5, 6, 7]
    (request,) = engine.requests
    assert request["input_ids"] == [1, P, 2, 3, P, 4]
    assert [read_picture(value) for value in request["image_data"]] == pictures()


async def test_a_retry_shows_the_same_pictures(engine: ScriptedEngine) -> None:
    engine.faults.append("503")
    client = EngineClient(engine.address, vocab_size=100, retries=1)
    await client.generate(PROMPT, PARAMS, rid="a", pictures=sent())
    await client.close()
    first, second = engine.requests
    assert first["image_data"] == second["image_data"]


async def test_an_engine_that_reads_other_tokens_is_not_believed(engine: ScriptedEngine) -> None:
    engine.answer_overrides = {"prompt_tokens": 6}
    router = Router([engine.address], vocab_size=100)
    with pytest.raises(EngineError, match=r"read 6 prompt tokens, wanted 8: it makes other tokens of the pictures"):
        await router.generate("t", PROMPT, PARAMS, pictures=sent())
    await router.close()


async def test_a_text_request_says_nothing_of_pictures(engine: ScriptedEngine) -> None:
    router = Router([engine.address], vocab_size=100)
    await router.generate("t", PROMPT, PARAMS)
    await router.close()
    assert engine.requests[0]["input_ids"] == PROMPT
    assert "image_data" not in engine.requests[0]


def test_started_servers_keep_the_ids_of_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []

    class Stopped(Exception):
        pass

    def popen(*args: object, env: dict[str, str], **kwargs: object) -> None:
        started.append(env)
        raise Stopped

    monkeypatch.setattr(engine_host.subprocess, "Popen", popen)
    config = RunConfig()
    config.actor_rollout_ref.rollout.name = "embedded"
    config.trainer.device = "cpu"
    with pytest.raises(Stopped):
        EngineFleet.start(config, tmp_path)
    monkeypatch.setenv("SGLANG_MM_AVOID_RETOKENIZE", "0")
    with pytest.raises(Stopped):
        EngineFleet.start(config, tmp_path)
    assert [env["SGLANG_MM_AVOID_RETOKENIZE"] for env in started] == ["1", "0"]
