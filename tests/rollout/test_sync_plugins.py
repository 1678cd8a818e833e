"""Methods of tools and interactions need not be async: they run in a thread, and hold no other trajectory up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rollout_helpers import MakeEngine, batch_of, sample, use_plugins

from agentrl.config.root import RunConfig
from agentrl.errors import PluginError
from agentrl.interfaces import BaseInteraction
from agentrl.plugins.adapt import as_interaction
from agentrl.rollout.manager import AgentLoopManager

PLUGINS = """
import threading
from concurrent.futures import Future

from agentrl.agent_loops.tool_agent import ToolAgent
from agentrl.interfaces import BaseInteraction
from agentrl.tools.calculator import Calculator
from agentrl.types import InteractionResponse

released = []
met = threading.Barrier(3)  # three trajectories block here at the same time: none of them blocks the event loop


class Tool(Calculator):
    def create(self, **kwargs):
        self.made = threading.current_thread().name

    def execute(self, arguments, context, **kwargs):
        met.wait(30)
        return f"{self.made} {context.index}"

    def calc_reward(self, **kwargs):
        return 2

    def release(self, **kwargs):
        released.append("tool")


class Other(BaseInteraction):
    def start_interaction(self, **kwargs):
        self.thread = threading.current_thread().name

    def generate_response(self, messages):
        met.wait(30)
        return InteractionResponse(True, "", 0.5)

    def calculate_score(self):
        return 3

    def finalize_interaction(self):
        released.append("interaction")


class Loop(ToolAgent):
    pass


def score(data_source, solution_str, ground_truth, extra_info):
    told = [message["content"] for message in extra_info["messages"] if message["role"] == "tool"]
    parts = {"told": told[0], "tool": extra_info["tool_scores"], "other": extra_info["interaction_score"]}
    return {"score": 1.0, **parts, "released": list(released)}
"""


def test_methods_that_are_not_async_run_in_threads(
    config: RunConfig, tmp_path: Path, make_engine: MakeEngine, make_manager: Callable[..., AgentLoopManager]
) -> None:
    use_plugins(config, tmp_path, PLUGINS)
    samples = [sample(index, interaction_kwargs={"name": "other"}) for index in range(3)]
    out = make_manager(make_engine().address).generate_sequences(batch_of(samples))
    assert out.meta_info["failures"] == []
    for index, extra in enumerate(out.non_tensor_batch["reward_extra_info"]):
        assert extra["told"] == f"agentrl-plugin {index}"
        assert (extra["tool"], extra["other"]) == ({"calculator": 2.0}, 3.0)


def test_an_interaction_that_yields_is_refused() -> None:
    class Streams(BaseInteraction):
        async def generate_response(self, messages):  # type: ignore[no-untyped-def, override]
            yield "a part"

    with pytest.raises(PluginError, match=r"Streams\.generate_response yields: .*so `return` it"):
        as_interaction(Streams, {})
