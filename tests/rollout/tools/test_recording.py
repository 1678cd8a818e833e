"""A recorded run repeats without the services behind its tools."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rollout_helpers import ANSWER, MakeEngine, batch_of, sample
from sandbox_server import Sandbox

from agentrl.config import check_run_config
from agentrl.config.root import RunConfig
from agentrl.data_proto import DataProto
from agentrl.errors import ConfigError, PluginError, ToolServiceError
from agentrl.rollout.manager import AgentLoopManager
from agentrl.rollout.tools.recording import ToolCache, as_json, recorded_discovery
from agentrl.testing.scripted_engine import Respond
from agentrl.types import ToolResponse

TWICE = (
    '<tool_call>\n{"name": "python", "arguments": {"code": "n = globals().get(\'n\', 0) + 1\\nprint(n)"}}\n</tool_call>'
)
OTHER = '<tool_call>\n{"name": "python", "arguments": {"code": "print(0)"}}\n</tool_call>'


@pytest.fixture
def recorded(config: RunConfig, sandbox: Sandbox, tmp_path: Path) -> RunConfig:
    """A run with a stateful tool, which is to be recorded."""
    tool = {"class_name": "python", "config": {"sandbox_url": sandbox.url, "session": True, "retries": 0}}
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": [tool]}))
    turns = config.actor_rollout_ref.rollout.multi_turn
    turns.tool_config_path = str(tmp_path / "tools.yaml")
    turns.tool_cache.mode, turns.tool_cache.path = "record", str(tmp_path / "cache")
    config.trainer.deterministic = True
    return config


def roll_out(config: RunConfig, engine: str, *, step: int = 1) -> DataProto:
    manager = AgentLoopManager(config, [engine])
    try:
        return manager.generate_sequences(batch_of([sample(0), sample(1)], n=2, global_step=step))
    finally:
        manager.shutdown()


def assert_same(one: DataProto, two: DataProto) -> None:
    assert one.batch.keys() == two.batch.keys()
    for name, tensor in one.batch.items():
        assert torch.equal(tensor, two.batch[name]), name
    for name in ("row", "score", "stop_reason", "num_tool_calls", "num_turns"):
        assert list(one.non_tensor_batch[name]) == list(two.non_tensor_batch[name])
    for mine, other in zip(one.non_tensor_batch["messages"], two.non_tensor_batch["messages"], strict=True):
        assert mine == other


def test_a_replayed_run_gives_the_same_trajectories(
    recorded: RunConfig, sandbox: Sandbox, make_engine: MakeEngine, play: Callable[..., Respond]
) -> None:
    engine = make_engine(play(TWICE, TWICE, ANSWER)).address
    first = roll_out(recorded, engine)
    said = [m["content"] for m in first.non_tensor_batch["messages"][0] if m["role"] == "tool"]
    assert said == ["1", "2"]
    assert sandbox.sessions == {}
    sandbox.requests.clear()
    recorded.actor_rollout_ref.rollout.multi_turn.tool_cache.mode = "replay"
    assert_same(first, roll_out(recorded, engine))
    assert_same(first, roll_out(recorded, engine))
    assert sandbox.requests == []


def test_failures_are_part_of_what_is_repeated(
    recorded: RunConfig, sandbox: Sandbox, make_engine: MakeEngine, play: Callable[..., Respond]
) -> None:
    engine = make_engine(play(TWICE, ANSWER)).address
    sandbox.orders += [{"no": "session"}]
    first = roll_out(recorded, engine)
    (failure,) = first.meta_info["failures"]
    recorded.actor_rollout_ref.rollout.multi_turn.tool_cache.mode = "replay"
    again = roll_out(recorded, engine)
    assert_same(first, again)
    assert [f["error"] for f in again.meta_info["failures"]] == [failure["error"]]


def test_what_was_not_recorded_is_a_failure_that_says_so(
    recorded: RunConfig, make_engine: MakeEngine, play: Callable[..., Respond]
) -> None:
    roll_out(recorded, make_engine(play(TWICE, ANSWER)).address)
    recorded.actor_rollout_ref.rollout.multi_turn.tool_cache.mode = "replay"
    recorded.actor_rollout_ref.rollout.max_failure_rate = 1.0

    def refused(engine: str, step: int) -> str:
        manager = AgentLoopManager(recorded, [engine])
        with pytest.raises(Exception, match="trajectories failed") as caught:
            manager.generate_sequences(batch_of([sample(0)], global_step=step))
        manager.shutdown()
        return str(caught.value)

    other = refused(make_engine(play(OTHER, ANSWER)).address, 1)
    assert "holds no result of tool 'python' for a call with arguments {'code': 'print(0)'}" in other
    assert "in trajectory train/1/openai/gsm8k/0/0" in other
    assert "occurrence 2" in refused(make_engine(play(TWICE, TWICE, ANSWER)).address, 1)
    assert "in trajectory train/2/openai/gsm8k/0/0" in refused(make_engine(play(TWICE, ANSWER)).address, 2)


async def one(cache: ToolCache, text: str | None = None, *, trajectory: str = "t", **arguments: Any) -> ToolResponse:
    with cache.trajectory(trajectory).of("tool", {"row": 1}, arguments=arguments) as record:
        if record.found is not None:
            return ToolResponse(**record.found)
        assert text is not None, "a replay must not call"
        response = ToolResponse(text=text, reward=0.5, metrics={"m": 1.0}, is_error=True)
        record.keep(as_json(response))
        return response


async def test_workers_write_files_of_their_own(tmp_path: Path) -> None:
    first, second = ToolCache("record", tmp_path), ToolCache("record", tmp_path)
    await one(first, "old", a=1)
    await one(second, "new", a=1)
    await one(first, "ünï\n", a=2)
    await one(second, "other", a=1, trajectory="u")
    for cache in (first, second):
        cache.close()
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    replay = ToolCache("replay", tmp_path)
    assert await one(replay, a=1) == ToolResponse(text="new", reward=0.5, metrics={"m": 1.0}, is_error=True)
    assert (await one(replay, a=2)).text == "ünï\n"
    assert (await one(replay, a=1, trajectory="u")).text == "other"
    with pytest.raises(ToolServiceError, match=r"execute_kwargs \{'row': 1\}"):
        await one(replay, a=3)


async def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    cache = ToolCache("record", tmp_path)
    await one(cache, "whole", a=1)
    await one(cache, "cut", a=2)
    cache.close()
    (file,) = tmp_path.glob("*.jsonl")
    file.write_bytes(file.read_bytes()[:-3])
    replay = ToolCache("replay", tmp_path)
    assert (await one(replay, a=1)).text == "whole"
    with pytest.raises(ToolServiceError, match="holds no result"):
        await one(replay, a=2)


async def test_what_cannot_be_recorded_or_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolServiceError, match="cannot be written"):
        await one(ToolCache("record", tmp_path / "file"), "x")

    (tmp_path / "x.jsonl").write_text('{"something": "else"}\n')
    with pytest.raises(ConfigError, match=r"x\.jsonl holds no record at byte 0"):
        ToolCache("replay", tmp_path)


async def test_rewards_of_a_trajectory_are_recorded(tmp_path: Path) -> None:
    cache = ToolCache("record", tmp_path)
    with cache.trajectory("t").of("tool", {}, calc_reward=True) as record:
        assert record.found is None
        record.keep({"reward": 0.75})
    cache.close()
    replay = ToolCache("replay", tmp_path)
    assert replay.trajectory("t").of("tool", {}, calc_reward=True).found == {"reward": 0.75}
    with pytest.raises(ToolServiceError, match="of tool 'tool' for calc_reward"):
        replay.trajectory("u").of("tool", {}, calc_reward=True)


class Offers:
    """Stands for the class of MCP tools."""

    asked = 0

    @classmethod
    def discover(cls, servers: Any, config: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        cls.asked += 1
        return [({"server": servers["s"]}, {"type": "function", "function": {"name": "t"}})]


def test_a_replay_asks_no_mcp_server(tmp_path: Path) -> None:
    servers = {"s": {"command": str(tmp_path)}}
    found = recorded_discovery("record", tmp_path)(Offers, servers, {})
    assert Offers.asked == 1
    assert recorded_discovery("replay", tmp_path)(Offers, servers, {}) == found
    assert Offers.asked == 1
    with pytest.raises(PluginError, match=r"mcp_tools\.json has no record of the MCP servers s, z"):
        recorded_discovery("replay", tmp_path)(Offers, {**servers, "z": {}}, {})


def test_settings_that_cannot_work(config: RunConfig, tmp_path: Path) -> None:
    cache = config.actor_rollout_ref.rollout.multi_turn.tool_cache
    cache.mode = "record"
    with pytest.raises(ConfigError, match=r"tool_cache\.path: not given, wanted a folder for `mode: record`"):
        check_run_config(config)
    cache.mode, cache.path = "replay", str(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"nothing', which holds no recorded results"):
        AgentLoopManager(config, [])
    shutil.rmtree(tmp_path)
