"""Every engine through the client that training uses. vLLM and SGLang: where a Python that has them is named."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RunConfig
from agentrl.inference.clients import client_class
from agentrl.inference.launch import EngineServers
from agentrl.testing.engine_contract import ENGINE_CONTRACTS, EngineCase, EngineCheck
from agentrl.testing.models import build_tiny_model, byte_tokenizer

CONTEXT = 1024
SHAPE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
"""Heads of 32 features: vLLM's attention on a CPU takes no smaller ones."""


def python_of(engine: str) -> str | None:
    """The Python of an engine that is not agentrl's own; skips where none is named."""
    if engine in ("embedded", "hf"):
        return None
    variable = f"AGENTRL_{engine.upper()}_PYTHON"
    if variable not in os.environ:
        pytest.skip(f"{variable} is not set: it names a Python that has {engine}")
    return os.environ[variable]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("models")
    return [build_tiny_model(root / str(seed), seed=seed, **SHAPE) for seed in (0, 5)]


@pytest.fixture(scope="module", params=["embedded", "hf", "vllm", "sglang"])
def case(
    request: pytest.FixtureRequest, models: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineCase]:
    rollout: dict[str, Any] = {
        "name": request.param,
        "max_num_seqs": 16,
        "server": {"python": python_of(request.param), "start_timeout_s": 600.0},
        "embedded": {"threads": 1},
    }
    if request.param == "sglang":
        rollout["server"]["args"] = ["--enable-metrics"]
    config = RunConfig.model_validate(
        {
            "data": {"max_prompt_length": 24, "max_response_length": 1000},
            "actor_rollout_ref": {"model": {"path": str(models[0])}, "rollout": rollout},
            "trainer": {"device": "cpu"},
        }
    )
    tokenizer = byte_tokenizer()
    (letter,) = tokenizer.encode("a", add_special_tokens=False)
    with EngineServers.start(config, tmp_path_factory.mktemp("logs")) as servers:
        client = client_class(config)(servers.addresses[0], vocab_size=len(tokenizer))
        yield EngineCase(client, *models, letter=letter, text="a", eos=tokenizer.eos_token_id, context=CONTEXT)


@pytest.mark.parametrize("check", ENGINE_CONTRACTS, ids=lambda check: check.__name__)
def test_contract(case: EngineCase, check: EngineCheck) -> None:
    async def checked() -> None:
        try:
            await check(case)
        finally:
            await case.client.close()

    asyncio.run(checked())
