"""The whole way from samples to a padded batch, with real loops, tools and rewards, over a scripted engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rollout_helpers import ANSWER, CALL, MakeEngine, batch_of, sample

from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError, FailureBudgetError, PluginError, TemplateError
from agentrl.rollout.manager import AgentLoopManager
from agentrl.types import StopReason

MakeManager = Callable[..., AgentLoopManager]


def test_a_tool_conversation(make_engine: MakeEngine, make_manager: MakeManager, encode: Any) -> None:
    engine = make_engine()
    out = make_manager(engine.address).generate_sequences(
        batch_of([sample(0), sample(1, "what is 3 plus 4?")], n=2, global_step=3, weight_version=0)
    )
    assert len(out) == 4
    call, answer = encode(CALL), encode(ANSWER)
    for i in range(4):
        valid = out.batch["attention_mask"][i, out.batch["prompts"].shape[1] :].bool()
        mask = out.batch["response_mask"][i][valid].tolist()
        gap = len(mask) - len(call) - len(answer)
        assert gap > 0
        assert mask == [1] * len(call) + [0] * gap + [1] * len(answer)
        ids = out.batch["responses"][i][valid]
        assert ids[: len(call)].tolist() == call
        assert ids[-len(answer) :].tolist() == answer
        assert out.batch["rm_scores"][i].nonzero().flatten().tolist() == [len(mask) - 1]
    assert out.batch["rm_scores"].sum(1).tolist() == [1.0] * 4
    assert set(out.batch["weight_versions"].unique().tolist()) == {-1, 0}
    assert out.batch["rollout_log_probs"].sum().item() == -0.5 * out.batch["response_mask"].sum().item()
    columns = out.non_tensor_batch
    assert list(columns["row"]) == [0, 1, 2, 3]
    assert list(columns["uid"]) == ["group-0"] * 2 + ["group-1"] * 2
    assert list(columns["num_turns"]) == [4] * 4
    assert list(columns["num_tool_calls"]) == [1] * 4
    assert list(columns["stop_reason"]) == ["completed"] * 4
    assert list(columns["score"]) == [1.0] * 4
    assert [m["role"] for m in columns["messages"][0]] == ["user", "assistant", "tool", "assistant"]
    assert columns["messages"][0][2]["content"] == "7"
    assert columns["data_source"][0] == "openai/gsm8k"
    assert columns["ground_truth"][0] == "7"
    assert columns["extra_info"][2] == {"index": 1}
    metrics = out.meta_info["metrics"]
    assert metrics["num_turns/mean"] == 4
    assert metrics["tool_call_counts/max"] == 1
    assert metrics["rollout/tool_call_rate"] == 1.0
    assert metrics["rollout/tool_error_rate"] == 0.0
    assert metrics["rollout/env_error_rate"] == 0.0
    assert metrics["rollout/stop_reason/completed"] == 1.0
    assert sum(value for name, value in metrics.items() if "stop_reason" in name) == 1.0
    assert metrics["response_length/max"] == out.batch["responses"].shape[1]
    assert metrics["response_length/clip_ratio"] == 0.0
    assert metrics["prompt_length/max"] == out.batch["prompts"].shape[1]
    assert metrics["timing_s/agent_loop/generate_sequences/min"] > 0
    assert metrics["timing_s/agent_loop/tool_calls/max"] > 0
    assert metrics["timing_s/agent_loop/compute_score/max"] > 0
    assert 0 <= metrics["timing_s/agent_loop/loop_lag/mean"] <= metrics["timing_s/agent_loop/loop_lag/max"]
    assert out.meta_info["failures"] == []
    assert out.meta_info["global_step"] == 3


def test_every_request_continues_the_last_ones_tokens(make_engine: MakeEngine, make_manager: MakeManager) -> None:
    engine = make_engine()
    make_manager(engine.address).generate_sequences(batch_of([sample(0)]))
    first, second = engine.requests
    assert second["input_ids"][: len(first["input_ids"])] == first["input_ids"]
    assert first["rid"].removesuffix("-0") == second["rid"].removesuffix("-1")


def test_the_assistants_tokens_alone_are_scored(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, play: Any
) -> None:
    """The tool answers 7 and the user asks about `#### 7`; the assistant never says so."""
    engine = make_engine(play(CALL, "I do not know"))
    out = make_manager(engine.address).generate_sequences(batch_of([sample(0, "is it #### 7?")]))
    assert list(out.non_tensor_batch["score"]) == [0.0]


def test_rows_pick_their_loop(make_engine: MakeEngine, make_manager: MakeManager) -> None:
    engine = make_engine()
    rows = [sample(0, agent_name="single_turn_agent"), sample(1, agent_name="tool_agent"), sample(2)]
    out = make_manager(engine.address).generate_sequences(batch_of(rows))
    assert list(out.non_tensor_batch["num_turns"]) == [2, 4, 4]


def test_more_trajectories_than_slots(config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager) -> None:
    config.actor_rollout_ref.rollout.agent.max_in_flight = 3
    engine = make_engine()
    out = make_manager(engine.address).generate_sequences(batch_of([sample(i) for i in range(20)], n=2))
    assert list(out.non_tensor_batch["row"]) == list(range(40))


def test_sampling_of_training_and_validation(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, tokenizer: Any
) -> None:
    rollout = config.actor_rollout_ref.rollout
    rollout.temperature, rollout.top_p, rollout.top_k, rollout.min_p = 0.7, 0.9, 50, 0.1
    engine = make_engine()
    manager = make_manager(engine.address)
    manager.generate_sequences(batch_of([sample(0)]))
    params = engine.requests[0]["sampling_params"]
    assert {"temperature": 0.7, "top_p": 0.9, "top_k": 50, "min_p": 0.1}.items() <= params.items()
    assert params["max_new_tokens"] == 512
    assert tokenizer.eos_token_id in params["stop_token_ids"]
    assert "sampling_seed" not in params
    engine.requests.clear()
    manager.generate_sequences(batch_of([sample(0)], validate=True))
    params = engine.requests[0]["sampling_params"]
    assert {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}.items() <= params.items()
    rollout.val_kwargs.do_sample, rollout.val_kwargs.temperature, rollout.val_kwargs.top_p = True, 1.0, 0.8
    engine.requests.clear()
    manager.generate_sequences(batch_of([sample(0)], validate=True))
    assert {"temperature": 1.0, "top_p": 0.8}.items() <= engine.requests[0]["sampling_params"].items()


def test_deterministic_seeds(config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager) -> None:
    config.trainer.deterministic = True
    engine = make_engine()
    manager = make_manager(engine.address)

    def seeds(step: int) -> list[int]:
        engine.requests.clear()
        manager.generate_sequences(batch_of([sample(0), sample(1)], n=2, global_step=step))
        return sorted(request["sampling_params"]["sampling_seed"] for request in engine.requests)

    first = seeds(1)
    assert len(set(first)) == 8
    assert seeds(1) == first
    assert not set(seeds(2)) & set(first)


def test_wrong_weights_are_never_trained_on(make_engine: MakeEngine, make_manager: MakeManager) -> None:
    old, new = make_engine(weight_version="4"), make_engine(weight_version="5")
    out = make_manager(old.address, new.address).generate_sequences(
        batch_of([sample(i) for i in range(6)], weight_version=5)
    )
    assert len(out) == 6
    assert set(out.batch["weight_versions"].unique().tolist()) == {-1, 5}
    with pytest.raises(FailureBudgetError, match=r"weight version 4[,;] the run is at 5"):
        make_manager(old.address).generate_sequences(batch_of([sample(0)], weight_version=5))


def test_custom_score_with_extra_information(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, tmp_path: Any
) -> None:
    file = tmp_path / "score.py"
    file.write_text(
        "def judge(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):\n"
        "    assert extra_info['messages'][-1]['role'] == 'assistant'\n"
        "    return {'score': extra_info['num_tool_calls'] + bonus, 'turns': extra_info['num_turns'],\n"
        "            'text': solution_str, 'index': extra_info['index']}\n"
    )
    section = config.custom_reward_function
    section.path, section.name, section.reward_kwargs = str(file), "judge", {"bonus": 0.25}
    engine = make_engine()
    out = make_manager(engine.address).generate_sequences(batch_of([sample(5, data_source="my/own")]))
    assert list(out.non_tensor_batch["score"]) == [1.25]
    assert out.non_tensor_batch["reward_extra_info"][0] == {"turns": 4, "text": f"{CALL}\n{ANSWER}", "index": 5}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"agent_name": "tool_agnet"}, "row 0.*tool_agnet.*Did you mean 'tool_agent'"),
        ({"tools_kwargs": {"calculater": {}}}, "row 0.*calculater.*Did you mean 'calculator'"),
        ({"interaction_kwargs": {"name": "gsm8k"}}, "row 0.*gsm8k.*interaction_config_path"),
        ({"data_source": "openai/gsm8"}, "row 0.*openai/gsm8.*Did you mean 'openai/gsm8k'"),
    ],
)
def test_rows_that_route_nowhere_are_refused_before_anything_runs(
    make_engine: MakeEngine, make_manager: MakeManager, fields: dict[str, Any], says: str
) -> None:
    engine = make_engine()
    manager = make_manager(engine.address)
    with pytest.raises(PluginError, match=says):
        manager.generate_sequences(batch_of([sample(0, **fields), sample(1)]))
    assert engine.requests == []


def test_all_problems_of_all_rows_in_one_error(make_manager: MakeManager) -> None:
    rows = [sample(0), sample(1, agent_name="nobody", data_source="nothing"), sample(2, tools_kwargs={"x": {}})]
    with pytest.raises(PluginError) as caught:
        make_manager("http://127.0.0.1:9").check_rows(rows)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["row 1", "row 1", "row 2"]


def test_bad_set_up_is_told_before_anything_runs(config: RunConfig, make_manager: MakeManager, tmp_path: Any) -> None:
    turns = config.actor_rollout_ref.rollout.multi_turn
    turns.tool_config_path = "tools/calculatr.yaml"
    with pytest.raises(ConfigError, match="does not exist"):
        make_manager("http://127.0.0.1:9")
    turns.tool_config_path = None
    turns.format = "hermess"
    with pytest.raises(PluginError, match="Did you mean 'hermes'"):
        make_manager("http://127.0.0.1:9")
    turns.format = "hermes"
    config.custom_reward_function.path = str(tmp_path / "missing.py")
    with pytest.raises(PluginError, match=r"missing\.py does not exist"):
        make_manager("http://127.0.0.1:9")
    (tmp_path / "there.py").write_text("def compute_scores(): ...\n")
    config.custom_reward_function.path = str(tmp_path / "there.py")
    with pytest.raises(PluginError, match="Did you mean 'compute_scores'"):
        make_manager("http://127.0.0.1:9")
    config.custom_reward_function.path = None
    config.reward_model.reward_manager = "naiv"
    with pytest.raises(PluginError, match="Did you mean 'naive'"):
        make_manager("http://127.0.0.1:9")
    config.actor_rollout_ref.model.path = str(tmp_path)
    with pytest.raises(TemplateError, match="tokenizer"):
        make_manager("http://127.0.0.1:9")


def test_a_turn_cut_by_the_length_limit_is_counted(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager
) -> None:
    config.data.max_response_length = 20
    engine = make_engine()
    out = make_manager(engine.address).generate_sequences(batch_of([sample(0)]))
    assert list(out.non_tensor_batch["stop_reason"]) == [StopReason.LENGTH.value]
    assert out.batch["response_mask"].tolist() == [[1] * 20]
    assert out.meta_info["metrics"]["response_length/clip_ratio"] == 1.0
    assert torch.equal(out.batch["attention_mask"][:, -20:], torch.ones(1, 20, dtype=torch.int64))
