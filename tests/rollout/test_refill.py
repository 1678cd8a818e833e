"""With `rollout.refill` what failed is rolled out again in its step; without it groups go on with the survivors."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from rollout_helpers import MakeEngine, batch_of, sample
from test_faults import ROWS, MakeManager, survivors_and_failures

from agentrl.config.root import RunConfig
from agentrl.errors import FailureBudgetError
from agentrl.rollout.manager import AgentLoopManager

TOOL = """
from collections import Counter

from agentrl.errors import DataError
from agentrl.interfaces import BaseTool
from agentrl.types import ToolResponse

STARTED = Counter()

class Flaky(BaseTool):
    '''Fails in the first `bad` trajectories of its row.'''

    @classmethod
    def default_schema(cls):
        return {"type": "function", "function": {"name": "calculator", "description": "", "parameters": {}}}

    async def create(self, row, bad=0, error="OSError"):
        STARTED[row] += 1
        self.bad, self.error = STARTED[row] <= bad, error

    async def execute(self, arguments, **kwargs):
        if self.bad:
            raise ConnectionResetError("service gone")
        return ToolResponse("7")
"""


@pytest.fixture
def started(config: RunConfig, tmp_path: Path) -> Any:
    """The run uses the flaky tool; gives how often each row was started."""
    file = tmp_path / "flaky.py"
    file.write_text(TOOL)
    (tmp_path / "tools.yaml").write_text(f"tools:\n  - class_name: {file}:Flaky\n")
    config.actor_rollout_ref.rollout.multi_turn.tool_config_path = str(tmp_path / "tools.yaml")

    def counts() -> dict[int, int]:
        from agentrl.plugins import load_file

        return dict(load_file(file).STARTED)

    return counts


def rows(*bad: int) -> list[Any]:
    return [sample(i, tools_kwargs={"calculator": {"create_kwargs": {"row": i, "bad": b}}}) for i, b in enumerate(bad)]


def test_failed_trajectories_are_rolled_out_again(
    config: RunConfig,
    started: Any,
    make_engine: MakeEngine,
    make_manager: MakeManager,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config.actor_rollout_ref.rollout.refill = True
    config.actor_rollout_ref.rollout.max_failure_rate = 0.25
    with caplog.at_level(logging.WARNING, "agentrl.rollout.report"):
        out = make_manager(make_engine().address).generate_sequences(batch_of(rows(0, 1, 2, 3)))
    left, failures = survivors_and_failures(out)
    assert left == [0, 1, 2]
    assert list(out.non_tensor_batch["score"]) == [1.0] * 3
    assert list(failures) == [3]
    assert len(out.meta_info["failures"][0]["earlier_errors"]) == 2
    assert out.meta_info["metrics"]["rollout/refilled"] == 2
    assert out.meta_info["metrics"]["rollout/env_error_rate"] == 0.25
    assert started() == {0: 1, 1: 2, 2: 3, 3: 3}
    assert "repeated 3 trajectories, 2 successfully" in caplog.text
    assert "service gone" in caplog.text


def test_without_refill_a_group_goes_on_with_its_survivors(
    started: Any, make_engine: MakeEngine, make_manager: MakeManager
) -> None:
    out = make_manager(make_engine().address).generate_sequences(batch_of(rows(0, 1)))
    assert survivors_and_failures(out)[0] == [0]
    assert out.meta_info["metrics"]["rollout/refilled"] == 0
    assert started() == {0: 1, 1: 1}


def test_a_refilled_batch_is_the_batch_without_failures(
    config: RunConfig, started: Any, make_engine: MakeEngine, make_manager: MakeManager
) -> None:
    """In deterministic mode a try has the seeds of the one before it."""
    config.actor_rollout_ref.rollout.refill = True
    config.trainer.deterministic = True
    engine = make_engine()
    make_manager(engine.address).generate_sequences(batch_of(rows(1)))
    seeds = [request["sampling_params"]["sampling_seed"] for request in engine.requests]
    assert len(seeds) == 3
    assert seeds[0] == seeds[1]


def test_engine_failures_are_refilled(config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager) -> None:
    config.actor_rollout_ref.rollout.refill = True
    engine = make_engine()
    engine.engine.faults.extend(["500", "500", "ok", "500"])
    out = make_manager(engine.address).generate_sequences(batch_of(ROWS[:1] + ROWS[2:]))
    assert survivors_and_failures(out) == ([0, 1, 2], {})
    assert out.meta_info["metrics"]["rollout/refilled"] >= 2


def test_a_row_that_cannot_be_used_is_not_tried_again(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager
) -> None:
    config.actor_rollout_ref.rollout.refill = True
    out = make_manager(make_engine().address).generate_sequences(batch_of([sample(0), sample(1, "9" * 2000)]))
    (failure,) = out.meta_info["failures"]
    assert failure["error"].startswith("DataError")
    assert failure["earlier_errors"] == []


def test_what_stays_broken_is_bounded_and_stops_the_run(
    config: RunConfig, started: Any, make_engine: MakeEngine
) -> None:
    config.actor_rollout_ref.rollout.refill = True
    config.actor_rollout_ref.rollout.max_refills = 1
    manager = AgentLoopManager(config, [make_engine().address])
    try:
        with pytest.raises(FailureBudgetError, match=r"3 of 3 .*\n.*service gone"):
            manager.generate_sequences(batch_of(rows(9, 9, 9)))
    finally:
        manager.shutdown()
    assert started() == {0: 2, 1: 2, 2: 2}
