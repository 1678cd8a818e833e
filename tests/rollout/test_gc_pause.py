"""Python's cyclic collector: rare while trajectories run, and as it was before and after."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rollout_helpers import MakeEngine, batch_of, sample, use_plugins

from agentrl.config.root import RunConfig
from agentrl.rollout.gc_pause import THRESHOLDS, seldom_collected
from agentrl.rollout.manager import AgentLoopManager
from agentrl.rollout.session import Session
from agentrl.trajectory import Trajectory

PLUGINS = """
import gc

from agentrl.agent_loops.tool_agent import ToolAgent
from agentrl.interactions.gsm8k import Gsm8kInteraction as Other
from agentrl.tools.calculator import Calculator as Tool


class Loop(ToolAgent):
    async def run(self, sampling_params, **row):
        output = await super().run(sampling_params, **row)
        output.extra_fields |= {"thresholds": gc.get_threshold(), "frozen": gc.get_freeze_count() > 0}
        return output


def score(*args, **kwargs):
    return 1.0
"""


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*before)


def state() -> tuple[Any, ...]:
    return gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0


def test_overlapping_uses_restore_when_the_last_one_ends() -> None:
    usual = state()
    first, second = seldom_collected(), seldom_collected()
    first.__enter__()
    second.__enter__()
    assert gc.get_threshold() == THRESHOLDS
    assert gc.get_freeze_count() > 0
    first.__exit__(None, None, None)
    assert gc.get_threshold() == THRESHOLDS
    second.__exit__(None, None, None)
    assert state() == usual


def test_a_failure_inside_restores() -> None:
    usual = state()
    with pytest.raises(ValueError, match="inside"), seldom_collected():
        raise ValueError("inside")
    assert state() == usual


@pytest.mark.parametrize(
    "settle",
    [gc.disable, gc.freeze, lambda: gc.set_threshold(0), lambda: gc.set_threshold(50_000, 5, 5)],
    ids=["collection is off", "objects are frozen", "a threshold of 0", "rarer collection"],
)
def test_settings_of_the_users_own_stay(settle: Callable[[], None]) -> None:
    settle()
    own = state()
    with seldom_collected():
        assert state()[:2] == own[:2]
    assert state() == own


def test_cycles_made_meanwhile_are_collected() -> None:
    with seldom_collected():
        cycle: list[Any] = []
        cycle.append(cycle)
        del cycle
        assert gc.collect() >= 1


def test_a_batch_is_rolled_out_so(
    config: RunConfig, make_engine: MakeEngine, make_manager: Callable[..., AgentLoopManager], tmp_path: Path
) -> None:
    use_plugins(config, tmp_path, PLUGINS)
    usual = state()
    done = make_manager(make_engine().address).generate_sequences(batch_of([sample(0), sample(1)]))
    seen = [(row["thresholds"], row["frozen"]) for row in done.non_tensor_batch["extra_fields"]]
    assert seen == [(THRESHOLDS, True)] * 2
    assert state() == usual


BROKEN_LOOP = """
from agentrl.agent_loops.tool_agent import ToolAgent


class Loop(ToolAgent):
    async def run(self, sampling_params, sample):
        output = await super().run(sampling_params, sample)
        if sample.index:
            raise KeyError("x")
        return output


class Tool: ...
"""


@pytest.mark.parametrize("fate", ["ends well", "500", "drop", "hang", "its loop raises"])
def test_a_trajectory_that_ended_leaves_nothing_to_collect(
    fate: str, config: RunConfig, make_engine: MakeEngine, make_manager: Callable[..., AgentLoopManager], tmp_path: Path
) -> None:
    """Its tokens would stay in memory until the collector looks at old objects, which it seldom does in a batch."""
    if fate == "its loop raises":
        tools = config.actor_rollout_ref.rollout.multi_turn.tool_config_path
        use_plugins(config, tmp_path, BROKEN_LOOP)
        config.actor_rollout_ref.rollout.multi_turn.tool_config_path = tools
        config.actor_rollout_ref.rollout.multi_turn.interaction_config_path = None
        config.custom_reward_function.path = None
    config.actor_rollout_ref.rollout.multi_turn.trajectory_timeout_s = 1.0 if fate == "hang" else 60.0
    engine = make_engine()
    if fate in ("500", "drop", "hang"):
        engine.engine.faults.append(fate)
    manager = make_manager(engine.address)
    gc.disable()
    gc.freeze()  # what other tests have left is not looked at
    done = manager.generate_sequences(batch_of([sample(0), sample(1)]))
    assert len(done) == (2 if fate == "ends well" else 1)
    assert [type(each) for each in gc.get_objects() if type(each) in (Session, Trajectory)] == []
