"""512 trajectories in flight while 5 % of the tool calls hang and 5 % fail."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from rollout_helpers import EngineInThread, MakeEngine, batch_of, sample

from agentrl.config.root import RunConfig
from agentrl.data_proto import DataProto
from agentrl.plugins import load_file
from agentrl.rollout.manager import AgentLoopManager
from agentrl.trainer.batch_columns import add_advantages
from agentrl.types import Sample

GROUPS, N = 64, 8
TOOL = """
import asyncio

from agentrl.errors import ToolServiceError
from agentrl.interfaces import BaseTool
from agentrl.types import ToolResponse

OPEN = set()
SEEN = {"most": 0}

class Service(BaseTool):
    @classmethod
    def default_schema(cls):
        return {"type": "function", "function": {"name": "calculator", "description": "", "parameters": {}}}

    async def create(self, fate="ok"):
        self.fate = fate
        OPEN.add(self)
        SEEN["most"] = max(SEEN["most"], len(OPEN))

    async def execute(self, arguments, **kwargs):
        if self.fate == "hang":
            await asyncio.sleep(3600)
        if self.fate == "fail":
            raise ToolServiceError("503")
        return ToolResponse("7", reward=1.0)

    async def release(self, **kwargs):
        OPEN.remove(self)
"""
SCORE = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return extra_info["points"]
"""


def trajectories() -> list[Sample]:
    """Groups of rows, each trajectory with a score and a fate of its own."""
    draw = random.Random(7)
    fates = ["hang"] * 26 + ["fail"] * 26 + ["ok"] * (GROUPS * N - 52)
    draw.shuffle(fates)
    return [
        sample(
            place // N,
            extra_info={"index": place, "points": draw.random()},
            tools_kwargs={"calculator": {"create_kwargs": {"fate": fate}}},
        )
        for place, fate in enumerate(fates)
    ]


def fate(row: Sample) -> str:
    return str(row.tools_kwargs["calculator"]["create_kwargs"]["fate"])


@pytest.fixture
def service(config: RunConfig, tmp_path: Path) -> Any:
    """The module of the tool; the run uses it, and a score function that knows each trajectory's points."""
    (tmp_path / "service.py").write_text(TOOL)
    (tmp_path / "score.py").write_text(SCORE)
    (tmp_path / "tools.yaml").write_text(f"tools:\n  - class_name: {tmp_path}/service.py:Service\n")
    rollout = config.actor_rollout_ref.rollout
    rollout.multi_turn.tool_config_path = str(tmp_path / "tools.yaml")
    rollout.multi_turn.tool_timeout_s = 2.0
    rollout.multi_turn.trajectory_timeout_s = 30.0
    rollout.agent.max_in_flight = GROUPS * N
    rollout.max_failure_rate = 0.15
    config.custom_reward_function.path = str(tmp_path / "score.py")
    return load_file(tmp_path / "service.py")


def roll_out(config: RunConfig, engine: EngineInThread, rows: list[Sample]) -> tuple[DataProto, int]:
    """One batch by a manager of its own; and how many tasks its worker's event loop still has afterwards."""
    manager = AgentLoopManager(config, [engine.address])
    try:
        out = manager.generate_sequences(batch_of(rows))
        thread = manager._pool._thread  # type: ignore[attr-defined]
        tasks = thread.submit(_tasks()).result(10)
    finally:
        manager.shutdown()
    return out, tasks


async def _tasks() -> int:
    await asyncio.sleep(0.1)  # tasks that were cancelled end in the next rounds of the loop
    return len(asyncio.all_tasks()) - 1


def advantages(config: RunConfig, out: DataProto) -> dict[float, float]:
    """Advantage of each trajectory, by its points."""
    out.batch["token_level_rewards"] = out.batch["rm_scores"]
    config.algorithm.adv_estimator = "grpo"
    add_advantages(out, list(out.non_tensor_batch["uid"]), config.algorithm)
    masked = out.batch["advantages"].sum(1) / out.batch["response_mask"].sum(1)
    return dict(zip([info["points"] for info in out.non_tensor_batch["extra_info"]], masked.tolist(), strict=True))


def open_things() -> tuple[int, int]:
    """Open files and connections of this process, and its threads besides the pools that Python keeps."""
    gc.collect()
    kept = ("asyncio_", "agentrl-plugin")
    return psutil.Process().num_fds(), sum(not t.name.startswith(kept) for t in threading.enumerate())


def test_hanging_and_failing_tools_cost_only_their_own_trajectories(
    config: RunConfig, service: Any, make_engine: MakeEngine
) -> None:
    engine = make_engine()
    rows = trajectories()
    roll_out(config, engine, rows[:2])  # what is made once per process
    before = open_things()
    began = time.monotonic()
    out, tasks = roll_out(config, engine, rows)
    assert time.monotonic() - began < 30
    assert service.SEEN["most"] > 256
    metrics = out.meta_info["metrics"]
    assert metrics["rollout/env_error_rate"] == pytest.approx(52 / 512)
    assert {f["row"] for f in out.meta_info["failures"]} == {i for i, row in enumerate(rows) if fate(row) != "ok"}
    assert {f["error"].partition(": ")[2] for f in out.meta_info["failures"]} == {
        "503",
        "tool 'calculator': execute took longer than 2 s",
    }
    assert set() == service.OPEN
    assert tasks == 0
    give_up = time.monotonic() + 10
    while open_things() != before and time.monotonic() < give_up:
        time.sleep(0.05)  # the engine of the test is in this process, and sees later that its clients are gone
    assert open_things() == before
    without, _ = roll_out(config, engine, [row for row in rows if fate(row) == "ok"])
    assert without.meta_info["failures"] == []
    survivors = advantages(config, out)
    assert len(survivors) == 460
    assert len({round(value, 6) for value in survivors.values()}) > 400
    assert survivors == advantages(config, without)
