"""A run over the tiny model, and engines that follow a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rollout_helpers import ANSWER, CALL, EngineInThread, MakeEngine
from transformers import PreTrainedTokenizerFast

from agentrl.config.root import RunConfig
from agentrl.rollout.manager import AgentLoopManager
from agentrl.testing.scripted_engine import Respond


@pytest.fixture
def encode(tokenizer: PreTrainedTokenizerFast) -> Callable[[str], list[int]]:
    """Ids of an assistant turn: its text and the end-of-turn id."""

    def encode(text: str) -> list[int]:
        return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]

    return encode


@pytest.fixture
def play(encode: Callable[[str], list[int]]) -> Callable[..., Respond]:
    """Answers turn k of every trajectory with the k-th text."""

    def play(*texts: str) -> Respond:
        def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
            turn = int(payload["rid"].rpartition("-")[2].partition(".")[0])
            ids = encode(texts[turn % len(texts)])
            budget = payload["sampling_params"]["max_new_tokens"]
            return (ids, "stop") if len(ids) <= budget else (ids[:budget], "length")

        return respond

    return play


@pytest.fixture
def make_engine(play: Callable[..., Respond]) -> Iterator[MakeEngine]:
    engines: list[EngineInThread] = []

    def make(respond: Respond | None = None, weight_version: str = "0") -> EngineInThread:
        engines.append(EngineInThread(respond or play(CALL, ANSWER), weight_version))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def config(tiny_model_dir: Path) -> RunConfig:
    """Tool agent with the calculator, quick to give up."""
    return RunConfig.model_validate(
        {
            "data": {"max_prompt_length": 1024, "max_response_length": 512},
            "actor_rollout_ref": {
                "model": {"path": str(tiny_model_dir)},
                "rollout": {
                    "multi_turn": {"tool_config_path": "tools/calculator.yaml", "max_assistant_turns": 4},
                    "agent": {"default_agent_loop": "tool_agent"},
                    "server": {"request_timeout_s": 20, "retries": 0},
                    "max_failure_rate": 0.5,
                },
            },
            "trainer": {"backend": "local"},
        }
    )


@pytest.fixture
def make_manager(config: RunConfig) -> Iterator[Callable[..., AgentLoopManager]]:
    managers: list[AgentLoopManager] = []

    def make(*addresses: str) -> AgentLoopManager:
        managers.append(AgentLoopManager(config, list(addresses)))
        return managers[-1]

    yield make
    for manager in managers:
        manager.shutdown()
