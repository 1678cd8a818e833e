"""Every engine through the client that training uses. vLLM and SGLang: where a Python that has them is named."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from needs import python_with

from agentrl.config import RunConfig
from agentrl.config.machine import OWN_ENGINES
from agentrl.errors import EngineError, EngineUnavailable
from agentrl.inference.clients import client_class
from agentrl.inference.fleet import EngineFleet
from agentrl.inference.hosts import LocalPlace
from agentrl.inference.protocol import UNKNOWN_VERSION
from agentrl.testing.engine_contract import ENGINE_CONTRACTS, NEEDS_SEEDS, EngineCase, EngineCheck
from agentrl.testing.models import build_tiny_model, byte_tokenizer
from agentrl.testing.wire_contract import WIRE_CONTRACTS

CONTEXT = 512
SHAPE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
"""Heads of 32 features: vLLM's attention on a CPU takes no smaller ones."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("models")
    return [build_tiny_model(root / str(seed), seed=seed, **SHAPE) for seed in (0, 5)]


def run_with(engine: str, model: Path) -> RunConfig:
    """A run whose engine takes requests of up to `CONTEXT` tokens."""
    rollout: dict[str, Any] = {
        "name": engine,
        "max_num_seqs": 16,
        "server": {"python": python_with(engine), "start_timeout_s": 600.0},
        "embedded": {"threads": 1},
    }
    if engine == "sglang":
        rollout["server"]["args"] = ["--enable-metrics"]
    return RunConfig.model_validate(
        {
            "data": {"max_prompt_length": 24, "max_response_length": CONTEXT - 24},
            "actor_rollout_ref": {"model": {"path": str(model)}, "rollout": rollout},
            "trainer": {"device": "cpu"},
        }
    )


@pytest.fixture(scope="module", params=["embedded", pytest.param("hf", marks=pytest.mark.slow), "vllm", "sglang"])
def servers(
    request: pytest.FixtureRequest, models: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineFleet]:
    config = run_with(request.param, models[0])
    with EngineFleet.start(config, tmp_path_factory.mktemp("logs")) as servers:
        yield servers


@pytest.fixture(scope="module")
def case(servers: EngineFleet, models: list[Path]) -> EngineCase:
    tokenizer = byte_tokenizer()
    (letter,) = tokenizer.encode("a", add_special_tokens=False)
    client = client_class(servers._config)(servers.addresses[0], vocab_size=len(tokenizer))
    case = EngineCase(client, *models, letter=letter, text="a", eos=tokenizer.eos_token_id, context=CONTEXT)
    if servers._config.actor_rollout_ref.rollout.name == "sglang":
        case.longest = 60  # on a CPU it samples a few tokens a second
    return case


@pytest.mark.parametrize("check", [*ENGINE_CONTRACTS, *WIRE_CONTRACTS], ids=lambda check: check.__name__)
def test_contract(servers: EngineFleet, case: EngineCase, check: EngineCheck) -> None:
    engine = servers._config.actor_rollout_ref.rollout.name
    if engine == "sglang" and check in NEEDS_SEEDS:
        pytest.skip(
            "SGLang samples something else with the same seed; trainer.deterministic is for the embedded engine"
        )
    if engine == "vllm" and check in WIRE_CONTRACTS:
        pytest.skip("of SGLang's API, which vLLM does not speak")

    async def checked() -> None:
        try:
            await check(case)
        finally:
            await case.client.close()

    asyncio.run(checked())


@pytest.mark.parametrize("fate", ["killed", "stopped"])
def test_an_engine_that_dies_or_hangs_is_started_again(servers: EngineFleet, case: EngineCase, fate: str) -> None:
    """Of its processes the one that computes: the server is found ill, started again, and none of them is left."""
    if servers._config.actor_rollout_ref.rollout.name in OWN_ENGINES:
        pytest.skip("tests/inference/test_launch.py kills and stops agentrl's own engines")
    assert servers.tend() == servers.addresses
    (place,) = servers._places.values()
    assert isinstance(place, LocalPlace)
    server = place._host._process
    assert server is not None
    before = servers.restarts
    family = psutil.Process(server.pid).children(recursive=True)
    family[-1].kill() if fate == "killed" else family[-1].suspend()
    deadline = time.monotonic() + 600
    while servers.restarts == before and time.monotonic() < deadline:
        if fate == "stopped":
            # A worker that computes nothing answers nothing: only a request shows that it hangs.
            asyncio.run(_ask_in_vain(case))
        with contextlib.suppress(EngineUnavailable):
            servers.tend()
        time.sleep(0.1)
    assert servers.restarts == before + 1
    assert servers.tend() == servers.addresses
    assert not any(process.is_running() for process in family)

    async def serves_the_first_weights() -> None:
        assert await case.client.weight_version() == UNKNOWN_VERSION
        case.check_greedy([1], await case.generate([1], 2, temperature=0.0, ignore_eos=True))
        await case.client.close()

    asyncio.run(serves_the_first_weights())


async def _ask_in_vain(case: EngineCase) -> None:
    with contextlib.suppress(TimeoutError, EngineError):
        await asyncio.wait_for(case.generate([1], 2), 5.0)
    await case.client.close()
