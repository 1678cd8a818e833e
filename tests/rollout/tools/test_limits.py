"""Limits of a tool hold over all workers of a run."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from rollout_helpers import MakeEngine, batch_of, sample

from agentrl.chat.renderer import ChatRenderer
from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError
from agentrl.plugins import ToolSpec
from agentrl.plugins.adapt import schema_of
from agentrl.rollout.manager import AgentLoopManager
from agentrl.rollout.tools.limits import CallLimits, check_limits
from agentrl.rollout.tools.shared import WorkerTools
from agentrl.rollout.tools.toolset import ToolSet
from agentrl.testing.models import byte_tokenizer
from agentrl.types import LoopLimits, ToolCall


class Busy:
    """Counts how many calls run at once."""

    def __init__(self, seconds: float = 0.02) -> None:
        self.seconds, self.now, self.most = seconds, 0, 0
        self.began: list[float] = []

    def spec(self, **config: Any) -> ToolSpec:
        async def work() -> str:
            """Work."""
            self.began.append(time.monotonic())
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(self.seconds)
            self.now -= 1
            return "done"

        return ToolSpec("work", work, config, schema_of(work, {}), timeout_s=config.get("timeout_s"))


async def run(worker: WorkerTools, *specs: ToolSpec, calls: int = 6) -> None:
    """Each spec in a trajectory of its own, all of one worker."""
    limits = LoopLimits(prompt_length=10, response_length=10)
    renderer = ChatRenderer(byte_tokenizer())
    sets = [ToolSet([spec], limits=limits, renderer=renderer, worker=worker) for spec in specs]
    for tools in sets:
        await tools.start()
    await asyncio.gather(*(tools.execute([ToolCall("work", {})] * calls) for tools in sets))


async def test_calls_at_once() -> None:
    busy = Busy(seconds=0.1)
    spec = busy.spec(max_concurrency=2, timeout_s=0.6)  # waiting for a turn is not the tool's time
    await run(WorkerTools(), spec, spec, busy.spec(max_concurrency=2, timeout_s=0.6))
    assert busy.most == 2
    assert len(busy.began) == 18
    free = Busy()
    await run(WorkerTools(), free.spec())
    assert free.most == 6


async def test_calls_per_second() -> None:
    busy = Busy(seconds=0.0)
    started = time.monotonic()
    await run(WorkerTools(workers=2), busy.spec(rate_limit_per_s=100))
    assert len(busy.began) == 6
    for number, began in enumerate(busy.began):  # one that begins late does not hold up the next
        assert began - started >= number * 0.02 - 0.001


async def test_a_cancelled_call_gives_its_place_back() -> None:
    busy, worker = Busy(seconds=30), WorkerTools()
    task = asyncio.create_task(run(worker, busy.spec(max_concurrency=1), calls=2))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    busy.seconds = 0.0
    async with asyncio.timeout(5):
        await run(worker, busy.spec(max_concurrency=1), calls=1)


@pytest.mark.parametrize(
    ("config", "workers", "share"),
    [
        ({"max_concurrency": 8, "rate_limit_per_s": 10}, 4, (2, 2.5)),
        ({"max_concurrency": 9}, 4, (2, None)),
        ({"max_concurrency": 3, "rate_limit_per_s": 4, "limits_per": "worker"}, 4, (3, 4)),
        ({"max_concurrency": 3}, 1, (3, None)),
        ({}, 4, (None, None)),
    ],
)
def test_a_workers_share(config: dict[str, Any], workers: int, share: tuple[Any, Any]) -> None:
    limits = CallLimits.of("t", config).share(workers)
    assert (limits.max_concurrency, limits.rate_limit_per_s) == share


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"max_concurrency": 0}, r"tool 'work': config\.max_concurrency: got 0, wanted a whole number of at least 1"),
        ({"max_concurrency": True}, "got True"),
        ({"max_concurrency": 1.5}, "got 1.5"),
        ({"rate_limit_per_s": "fast"}, r"config\.rate_limit_per_s: got 'fast', wanted a number above 0"),
        ({"limits_per": "runs"}, r"config\.limits_per: got 'runs'\. Did you mean 'run'"),
        ({"max_concurrency": 3}, r"got 3 for 4 agent-loop workers, wanted at least one call for each"),
    ],
)
def test_limits_that_cannot_work(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_limits([Busy().spec(**config)], 4)


def test_a_run_checks_the_limits_of_its_tools(config: RunConfig, tmp_path: Any, make_engine: MakeEngine) -> None:
    turns = config.actor_rollout_ref.rollout.multi_turn
    turns.tool_config_path = str(tmp_path / "tools.yaml")
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: calculator, config: {max_concurrency: no}}]")
    with pytest.raises(ConfigError, match="max_concurrency: got 'no', wanted a whole number"):
        AgentLoopManager(config, [])
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: calculator, config: {max_concurrency: 1}}]")
    manager = AgentLoopManager(config, [make_engine().address])
    out = manager.generate_sequences(batch_of([sample(i) for i in range(5)]))
    assert list(out.non_tensor_batch["num_tool_calls"]) == [1] * 5
    manager.shutdown()
