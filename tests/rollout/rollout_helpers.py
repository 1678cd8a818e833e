"""Engines that follow a script, and the batches that they roll out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from agentrl.config.root import RunConfig
from agentrl.data_proto import DataProto
from agentrl.rollout.pools.local import LoopThread
from agentrl.testing.scripted_engine import Respond, ScriptedEngine
from agentrl.types import Sample

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3+4"}}\n</tool_call>'
ANSWER = "It is #### 7"


class EngineInThread:
    """A scripted engine on a loop of its own, as a server is: it answers while the test waits for the manager."""

    def __init__(self, respond: Respond, weight_version: str = "0") -> None:
        self._thread = LoopThread("scripted-engine")
        self.engine = ScriptedEngine(respond, weight_version)
        self.start()

    @property
    def address(self) -> str:
        return self.engine.address

    @property
    def requests(self) -> list[dict[str, Any]]:
        return self.engine.requests

    def start(self) -> None:
        self._thread.submit(self.engine.start()).result(10)

    def stop(self) -> None:
        self._thread.submit(self.engine.stop()).result(10)

    def stop_soon(self) -> None:
        """From inside `respond`: die before any other answer is out."""

        async def die() -> None:
            await self.engine.stop()
            self.engine.faults.clear()

        self.engine.faults.extend(["drop"] * 1000)  # what comes in while the server ends
        self._task = asyncio.get_running_loop().create_task(die())

    def close(self) -> None:
        self.stop()
        self._thread.stop()


class MakeEngine(Protocol):
    def __call__(self, respond: Respond | None = None, weight_version: str = "0") -> EngineInThread: ...


def sample(index: int, question: str = "3+4", **fields: Any) -> Sample:
    base: dict[str, Any] = {
        "prompt": [{"role": "user", "content": question}],
        "data_source": "openai/gsm8k",
        "reward_model": {"style": "rule", "ground_truth": "7"},
        "extra_info": {"index": index},
    }
    return Sample(index=index, **{**base, **fields})


def batch_of(samples: Sequence[Sample], n: int = 1, **meta: Any) -> DataProto:
    repeated = [s for s in samples for _ in range(n)]
    uids = [f"group-{s.index}" for s in repeated]
    return DataProto({}, {"sample": repeated, "uid": uids}, meta)


def use_plugins(
    config: RunConfig, folder: Path, source: str, *, tool: str = "{}", interaction: str = "{}", score: str = "score"
) -> None:
    """Let a run use the classes `Tool`, `Other` and `Loop` and the score function of `source`.

    `tool` and `interaction` are the two configurations, as YAML.
    """
    (folder / "plugins.py").write_text(source)
    (folder / "tools.yaml").write_text(f"tools:\n- class_name: plugins.py:Tool\n  config: {tool}\n")
    (folder / "other.yaml").write_text(f"interaction:\n- class_name: plugins.py:Other\n  config: {interaction}\n")
    (folder / "loops.yaml").write_text("- name: mine\n  _target_: plugins.py:Loop\n")
    rollout = config.actor_rollout_ref.rollout
    rollout.multi_turn.tool_config_path = str(folder / "tools.yaml")
    rollout.multi_turn.interaction_config_path = str(folder / "other.yaml")
    rollout.agent.agent_loop_config_path = str(folder / "loops.yaml")
    rollout.agent.default_agent_loop = "mine"
    config.custom_reward_function.path, config.custom_reward_function.name = str(folder / "plugins.py"), score
