"""What a plug-in changes of its row or its configuration stays in its own trajectory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rollout_helpers import MakeEngine, batch_of, sample, use_plugins

from agentrl.config.root import RunConfig
from agentrl.rollout.manager import AgentLoopManager

PLUGINS = """
from agentrl.agent_loops.tool_agent import ToolAgent
from agentrl.interactions.gsm8k import Gsm8kInteraction
from agentrl.tools.calculator import Calculator
from agentrl.types import InteractionResponse, ToolResponse


class Tool(Calculator):
    def __init__(self, config, tool_schema=None):
        super().__init__({}, tool_schema)
        self.found = [config.pop("start")]

    async def create(self, seen, **kwargs):
        seen.append("tool")
        self.found.append(len(seen))

    async def execute(self, arguments, log, **kwargs):
        log.append("call")
        return ToolResponse(text=f"{self.found} {len(log)}")


class Other(Gsm8kInteraction):
    def __init__(self, config):
        super().__init__({})
        self.config = config

    async def start_interaction(self, seen, **kwargs):
        seen.append("interaction")
        self.config["seen"].append(len(seen))

    async def generate_response(self, messages):
        messages[-1]["content"] = "changed"
        messages.clear()
        return InteractionResponse(True, "", float(len(self.config["seen"])) + self.config["seen"][-1])


class Loop(ToolAgent):
    async def run(self, sampling_params, **row):
        row["extra_info"]["nested"]["loops"] += 1
        return await super().run(sampling_params, **row)


def score(data_source, solution_str, ground_truth, extra_info):
    ground_truth["target"].append("graded")
    told = [message["content"] for message in extra_info["messages"] if message["role"] == "tool"]
    said, turns = extra_info["messages"][-1]["content"], extra_info["turn_scores"]
    seen = {"said": said, "told": told, "turns": turns, "loops": extra_info["nested"]["loops"]}
    return {"score": float(len(ground_truth["target"])), "seen": str(seen)}
"""


def test_the_rollouts_of_a_row_share_nothing(
    config: RunConfig, tmp_path: Path, make_engine: MakeEngine, make_manager: Callable[..., AgentLoopManager]
) -> None:
    use_plugins(config, tmp_path, PLUGINS, tool="{start: 5}", interaction="{seen: []}")
    row = sample(
        0,
        reward_model={"ground_truth": {"target": []}},
        tools_kwargs={"calculator": {"create_kwargs": {"seen": []}, "execute_kwargs": {"log": []}}},
        interaction_kwargs={"name": "other", "seen": []},
        extra_info={"nested": {"loops": 0}},
    )
    out = make_manager(make_engine().address).generate_sequences(batch_of([row], n=4))
    assert list(out.non_tensor_batch["score"]) == [1.0] * 4
    seen = [extra["seen"] for extra in out.non_tensor_batch["reward_extra_info"]]
    assert seen == ["{'said': 'It is #### 7', 'told': ['[5, 1] 1'], 'turns': [2.0], 'loops': 1}"] * 4
    assert row.extra_info == {"nested": {"loops": 0}}
