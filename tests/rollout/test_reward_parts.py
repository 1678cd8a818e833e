"""Rewards of tools and turns on their way from a conversation to the token rewards of a batch."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from rollout_helpers import MakeEngine, batch_of, sample

from agentrl.config.root import RunConfig
from agentrl.errors import PluginError
from agentrl.observability.rollout_log import write_rollouts
from agentrl.rollout.manager import AgentLoopManager
from agentrl.testing.scripted_engine import Respond
from agentrl.trainer.validation import score_metrics

MakeManager = Callable[..., AgentLoopManager]
SERVER = Path(__file__).parents[1] / "tools" / "mcp_server.py"


def grade(answer: str) -> str:
    call = {"name": "calc_gsm8k_reward", "arguments": {"answer": answer}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


@pytest.fixture
def graded(config: RunConfig) -> RunConfig:
    config.actor_rollout_ref.rollout.multi_turn.tool_config_path = "tools/gsm8k.yaml"
    return config


ROW = sample(0, tools_kwargs={"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "7"}}})
TEXTS = (grade("5"), grade("7"), "#### 7")


def ends_of_turns(out: Any) -> list[int]:
    """Last token of each sampled turn of the first row."""
    mask = [*out.batch["response_mask"][0].tolist(), 0]
    return [place for place in range(len(mask) - 1) if mask[place] and not mask[place + 1]]


def test_tool_rewards_sit_on_the_turns_that_called(
    graded: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, play: Callable[..., Respond]
) -> None:
    combine = graded.reward_model.combine
    combine.tool, combine.outcome, combine.level = 2.0, 0.5, "turn"
    out = make_manager(make_engine(play(*TEXTS)).address).generate_sequences(batch_of([ROW]))
    first, second, last = ends_of_turns(out)
    rewards = out.batch["rm_scores"][0]
    assert {place: round(rewards[place].item(), 6) for place in rewards.nonzero().flatten().tolist()} == {
        first: -0.1,
        last: 0.5,
    }
    assert second not in rewards.nonzero().flatten().tolist()
    assert list(out.non_tensor_batch["score"]) == [pytest.approx(0.4)]
    extra = out.non_tensor_batch["reward_extra_info"][0]
    assert extra == {"outcome_score": 1.0, "turn_score": 0, "tool_reward": -0.05}


def test_at_trajectory_level_all_of_it_sits_at_the_end(
    graded: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, play: Callable[..., Respond]
) -> None:
    graded.reward_model.combine.tool = 2.0
    out = make_manager(make_engine(play(*TEXTS)).address).generate_sequences(batch_of([ROW]))
    rewards = out.batch["rm_scores"][0]
    assert rewards.nonzero().flatten().tolist() == [ends_of_turns(out)[-1]]
    assert rewards.sum().item() == pytest.approx(0.9)


def test_interaction_scores_sit_on_their_turns(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, play: Callable[..., Respond]
) -> None:
    config.actor_rollout_ref.rollout.multi_turn.interaction_config_path = "interactions/gsm8k.yaml"
    combine = config.reward_model.combine
    combine.turn, combine.outcome, combine.level = 1.0, 0.0, "turn"
    row = sample(0, data_source="nobody/knows", interaction_kwargs={"name": "gsm8k", "ground_truth": "7"})
    manager = make_manager(make_engine(play("#### 5", "#### 7")).address)
    out = manager.generate_sequences(batch_of([row]))
    first, second = ends_of_turns(out)
    assert out.batch["rm_scores"][0].tolist()[first] == 0.0
    assert out.batch["rm_scores"][0].tolist()[second] == 1.0
    combine.outcome = 1.0
    with pytest.raises(PluginError, match="nobody/knows"):
        make_manager("http://127.0.0.1:9").check_rows([row])


def test_the_score_function_sees_every_part(
    graded: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, play: Callable[..., Respond], tmp_path: Path
) -> None:
    (tmp_path / "score.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    keys = ('tool_rewards', 'tool_reward_turns', 'tool_scores', 'turn_scores')\n"
        "    keys += ('num_tool_calls', 'num_turns')\n"
        "    return {'score': 0, **{key: extra_info[key] for key in keys}, 'said': len(extra_info['messages'])}\n"
    )
    graded.custom_reward_function.path = str(tmp_path / "score.py")
    out = make_manager(make_engine(play(*TEXTS)).address).generate_sequences(batch_of([ROW]))
    assert out.non_tensor_batch["reward_extra_info"][0] == {
        "tool_rewards": [-0.05, 0.0],
        "tool_reward_turns": [0, 1],
        "tool_scores": {"calc_gsm8k_reward": 1.0},
        "turn_scores": [],
        "num_tool_calls": 2,
        "num_turns": 6,
        "said": 6,
    }


def test_mcp_servers_end_with_the_run(
    config: RunConfig, make_engine: MakeEngine, play: Callable[..., Respond], tmp_path: Path
) -> None:
    (tmp_path / "servers.json").write_text(
        json.dumps({"mcpServers": {"demo": {"command": sys.executable, "args": [str(SERVER)]}}})
    )
    mcp = {"mcp_servers_config_path": "servers.json", "tool_selected_list": ["count"]}
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": [{"config": {"type": "mcp"}, "mcp": mcp}]}))
    config.actor_rollout_ref.rollout.multi_turn.tool_config_path = str(tmp_path / "tools.yaml")
    call = '<tool_call>\n{"name": "count", "arguments": {}}\n</tool_call>'
    manager = AgentLoopManager(config, [make_engine(play(call, "#### 7")).address])
    out = manager.generate_sequences(batch_of([sample(i) for i in range(6)]))
    said = [messages[2]["content"].split() for messages in out.non_tensor_batch["messages"]]
    assert sorted(number for _, number in said) == list("123456")
    (pid,) = {pid for pid, _ in said}
    assert psutil.pid_exists(int(pid))
    manager.shutdown()
    assert not psutil.pid_exists(int(pid))


ODD_SCORE = """
import math, threading
import numpy as np

def score(data_source, solution_str, ground_truth, extra_info):
    odd = {"pred": {1: "x"}, "lock": threading.Lock(), "nan": math.nan, (1, 2): {3}}
    return {"score": np.float32(0.5), "acc": np.bool_(extra_info["index"] == 0), **odd} | (
        {"steps": np.int64(4)} if extra_info["index"] else {})
"""


def test_whatever_a_score_function_reports_reaches_metrics_and_log(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, tmp_path: Path
) -> None:
    (tmp_path / "score.py").write_text(ODD_SCORE)
    config.custom_reward_function.path, config.custom_reward_function.name = str(tmp_path / "score.py"), "score"
    out = make_manager(make_engine().address).generate_sequences(batch_of([sample(0), sample(1)]))
    names = ("uid", "data_source", "score", "num_turns", "reward_extra_info")
    metrics = score_metrics({name: out.non_tensor_batch[name] for name in names}, n=1)
    source = "openai/gsm8k"
    assert metrics[f"val-core/{source}/acc/mean@1"] == 0.5
    assert (metrics[f"val-aux/{source}/steps/mean@1"], metrics[f"val-aux/{source}/steps/rows"]) == (4.0, 1.0)
    file = write_rollouts(tmp_path / "dumps", 1, [out], str)
    assert file is not None
    first = json.loads(file.read_text().splitlines()[0])["reward_extra_info"]
    assert first.pop("lock").startswith("<unlocked _thread.lock")
    assert first == {"acc": True, "pred": {"1": "x"}, "nan": "nan", "(1, 2)": [3]}
    pickle.dumps(out.non_tensor_batch["reward_extra_info"])  # it crosses processes


def test_a_row_for_the_reward_model_alone_has_no_rule(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, play: Callable[..., Respond]
) -> None:
    alone = sample(0, data_source="nobody/knows", reward_model={"style": "model", "ground_truth": None})
    ruled = sample(1, data_source="nobody/knows")
    config.reward_model.enable = True
    manager = make_manager(make_engine(play("#### 7")).address)
    assert list(manager.generate_sequences(batch_of([alone])).non_tensor_batch["score"]) == [0.0]
    with pytest.raises(PluginError, match=r"nobody/knows.*reward_model.combine.outcome=0, or `reward_model.style`"):
        manager.check_rows([ruled])
    config.reward_model.enable = False
    with pytest.raises(PluginError, match="nobody/knows"):
        make_manager("http://127.0.0.1:9").check_rows([alone])
