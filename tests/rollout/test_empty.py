"""The one rule of empty generations: the model's doing, scored as any other answer, with nothing to train (`empty`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rollout_helpers import MakeEngine, batch_of, sample

from agentrl.config import RunConfig
from agentrl.data_proto import DataProto
from agentrl.observability.degeneracy import degeneracy_metrics
from agentrl.observability.rollout_log import rows as dumped
from agentrl.rollout.manager import AgentLoopManager
from agentrl.trainer import batch_columns
from agentrl.trainer.metrics import rollout_batch_metrics

MakeManager = Callable[..., AgentLoopManager]

PLUGINS = '''
from langchain.agents import create_agent
from agentrl.interfaces import AgentLoopBase
from agentrl.types import AgentLoopOutput


async def search(query: str) -> str:
    """Look something up."""
    return "7"


def graph(chat_model, tools):
    return create_agent(chat_model, tools)


def score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return 0.25 if not solution_str else 1.0


class Own(AgentLoopBase):
    """Knows nothing of empty generations."""

    async def run(self, sampling_params, messages, **row):
        prompt = self.context.renderer.render_prompt(messages)
        out = await self.context.generate(prompt, sampling_params)
        count = len(out.token_ids)
        return AgentLoopOutput(prompt, out.token_ids, [1] * count, out.log_probs, 2, "completed")


class Loses(AgentLoopBase):
    async def run(self, sampling_params, messages, extra_info, **row):
        prompt = self.context.renderer.render_prompt(messages)
        if extra_info["index"]:
            await self.context.generate(prompt, sampling_params)
        return AgentLoopOutput(prompt, [], [], [], 2, "completed")
'''
LOOPS = """
- {name: graph_loop, _target_: langgraph_agent, graph: "plugins.py:graph"}
- {name: own_loop, _target_: "plugins.py:Own"}
- {name: losing_loop, _target_: "plugins.py:Loses"}
"""
REACT_CALL = 'Thought: look\nAction: search\nAction Input: {"query": "3+4"}'
SEARCH_CALL = "<search>3+4</search>"
TOOL_CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "3+4"}}\n</tool_call>'
FIRST_TURNS = {
    "tool_agent": TOOL_CALL,
    "react_agent": REACT_CALL,
    "search_r1_agent": SEARCH_CALL,
    "graph_loop": TOOL_CALL,
}
LOOP_NAMES = ["single_turn_agent", "own_loop", *FIRST_TURNS]


@pytest.fixture
def run(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], RunConfig]:
    """The run with a loop; an empty answer scores 0.25, any other 1."""
    (tmp_path / "plugins.py").write_text(PLUGINS)
    (tmp_path / "loops.yaml").write_text(LOOPS)
    (tmp_path / "tools.yaml").write_text("tools:\n- class_name: plugins.py:search\n")
    rollout = config.actor_rollout_ref.rollout
    rollout.multi_turn.tool_config_path = str(tmp_path / "tools.yaml")
    rollout.agent.agent_loop_config_path = str(tmp_path / "loops.yaml")
    rollout.max_failure_rate, rollout.refill = 0.0, True
    config.custom_reward_function.path, config.custom_reward_function.name = str(tmp_path / "plugins.py"), "score"

    def choose(loop: str) -> RunConfig:
        pytest.importorskip("langchain", reason="langgraph_agent needs LangChain")
        rollout.agent.default_agent_loop = loop
        return config

    return choose


def empty_rows(out: DataProto) -> list[int]:
    return [i for i, reason in enumerate(out.non_tensor_batch["stop_reason"]) if reason == "empty"]


@pytest.mark.parametrize("loop", LOOP_NAMES)
def test_an_empty_first_generation_is_scored_and_has_nothing_to_train(
    run: Any, make_engine: MakeEngine, make_manager: MakeManager, loop: str
) -> None:
    run(loop)
    engine = make_engine(lambda payload: ([], "stop"))
    out = make_manager(engine.address).generate_sequences(
        batch_of([sample(0), sample(1, "what is 3+4?")], weight_version=0)
    )
    assert out.meta_info["failures"] == []
    assert list(out.non_tensor_batch["stop_reason"]) == ["empty"] * 2
    assert list(out.non_tensor_batch["score"]) == [0.25] * 2
    assert len(engine.requests) == 2, "it is not repeated"
    assert out.batch["response_mask"].tolist() == out.batch["loss_mask"].tolist() == [[0], [0]]
    assert out.batch["attention_mask"][:, -1].tolist() == [0, 0]
    assert out.batch["rm_scores"].tolist() == [[0.25], [0.25]]
    metrics = out.meta_info["metrics"]
    assert metrics["rollout/stop_reason/empty"] == 1
    assert metrics["rollout/env_error_rate"] == metrics["rollout/untrainable"] == metrics["response_length/max"] == 0
    assert rollout_batch_metrics(out, 1024)["critic/score/mean"] == 0.25
    assert degeneracy_metrics(out)["health/token_runs"] == 0
    for record in dumped(out, 1, lambda ids: f"{len(ids)} ids"):
        assert (record["response_ids"], record["response_mask"], record["segments"]) == ([], [], [])
        assert (record["score"], record["stop_reason"], record["output"]) == (0.25, "empty", "0 ids")
        assert record["prompt_ids"]


@pytest.mark.parametrize(("loop", "first"), FIRST_TURNS.items())
def test_an_empty_later_generation_is_scored_and_what_came_before_is_trained(
    run: Any, make_engine: MakeEngine, make_manager: MakeManager, encode: Any, loop: str, first: str
) -> None:
    run(loop)
    turn = encode(first)

    def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
        return ([] if payload["rid"].endswith("-1") else turn), "stop"

    engine = make_engine(respond)
    out = make_manager(engine.address).generate_sequences(batch_of([sample(0)]))
    assert len(engine.requests) == 2
    assert list(out.non_tensor_batch["stop_reason"]) == ["empty"]
    assert list(out.non_tensor_batch["score"]) == [1.0]
    assert out.batch["responses"].tolist() == [turn]
    assert out.batch["loss_mask"].tolist() == [[1] * len(turn)]


@pytest.mark.parametrize("loop", ["single_turn_agent", "own_loop", "tool_agent", "graph_loop"])
def test_an_end_of_turn_alone_is_a_sampled_token(
    run: Any, make_engine: MakeEngine, make_manager: MakeManager, encode: Any, loop: str
) -> None:
    run(loop)
    engine = make_engine(lambda payload: (encode(""), "stop"))
    out = make_manager(engine.address).generate_sequences(batch_of([sample(0)]))
    assert list(out.non_tensor_batch["stop_reason"]) == ["completed"]
    assert list(out.non_tensor_batch["score"]) == [0.25]
    assert out.batch["responses"].tolist() == [encode("")]
    assert out.batch["loss_mask"].tolist() == [[1]]


@pytest.mark.parametrize("turns", ["last_assistant", "final_answer"])
def test_what_is_trained_makes_no_difference_to_an_empty_first_generation(
    run: Any, make_engine: MakeEngine, make_manager: MakeManager, turns: str
) -> None:
    run("tool_agent").actor_rollout_ref.rollout.multi_turn.trainable_turns = turns
    engine = make_engine(lambda payload: ([], "stop"))
    out = make_manager(engine.address).generate_sequences(batch_of([sample(0)]))
    assert list(out.non_tensor_batch["score"]) == [0.25]


def test_a_loop_that_loses_its_tokens_or_asks_for_none_fails(
    run: Any, make_engine: MakeEngine, make_manager: MakeManager, encode: Any
) -> None:
    run("losing_loop").actor_rollout_ref.rollout.max_failure_rate = 0.9
    rows = [sample(0), sample(1), sample(2, agent_name="own_loop")]
    out = make_manager(make_engine(lambda p: (encode("hi"), "stop")).address).generate_sequences(batch_of(rows))
    assert [failure["error"] for failure in out.meta_info["failures"]] == [
        "agent loop 'losing_loop' asked for no turn, wanted a response with a sampled token",
        "agent loop 'losing_loop' returned none of the 3 tokens that were sampled, wanted a response with a sampled "
        "token",
    ]


def test_in_its_group_an_empty_trajectory_counts_with_its_score(
    run: Any, make_engine: MakeEngine, make_manager: MakeManager, encode: Any
) -> None:
    """Scores 1, 1 and 0.25: mean 0.75. Were the empty one a 0, the others would get 1 - 2/3."""
    config = run("single_turn_agent")
    config.algorithm.norm_adv_by_std_in_grpo = False

    def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
        return ([] if payload["rid"].split("-")[2] == "1" else encode("hi")), "stop"

    out = make_manager(make_engine(respond).address).generate_sequences(batch_of([sample(0)], n=3))
    assert empty_rows(out) == [1]
    kept, metrics = batch_columns.choose_rows(out, drop_flat_groups=True)
    assert len(kept) == 3
    assert metrics["rollout/zero_variance_groups"] == 0
    out.batch["token_level_rewards"] = out.batch["rm_scores"]
    for name in ("grpo", "rloo", "opo", "gpg", "reinforce_plus_plus"):
        config.algorithm.adv_estimator = name
        batch_columns.add_advantages(out, list(out.non_tensor_batch["uid"]), config.algorithm)
        assert not out.batch["advantages"][1].any()
        if name == "grpo":
            assert out.batch["advantages"][0].tolist() == pytest.approx([0.25] * 3)
        if name == "reinforce_plus_plus":  # equal rewards of all sampled tokens: the empty one is not among them
            assert not out.batch["advantages"].any()


def test_a_group_with_an_empty_trajectory_of_the_same_score_is_flat(
    run: Any, make_engine: MakeEngine, make_manager: MakeManager, encode: Any
) -> None:
    run("single_turn_agent")

    def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
        return ([] if payload["rid"].split("-")[2] == "1" else encode("")), "stop"

    out = make_manager(make_engine(respond).address).generate_sequences(batch_of([sample(0)], n=2))
    assert len(empty_rows(out)) == 1
    assert batch_columns.groups_with_variance(out) == 0
    assert torch.equal(out.batch["rm_scores"].sum(-1), torch.tensor([0.25, 0.25]))
