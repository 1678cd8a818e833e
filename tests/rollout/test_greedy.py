"""ReMax: a greedy rollout of each prompt beside its samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from rollout_helpers import ANSWER, CALL, MakeEngine, batch_of, sample

from agentrl.config.root import RunConfig
from agentrl.errors import FailureBudgetError
from agentrl.rollout.manager import AgentLoopManager
from agentrl.testing.scripted_engine import Respond

MakeManager = Callable[..., AgentLoopManager]
WRONG = "It is #### 8"


@pytest.fixture(autouse=True)
def remax(config: RunConfig) -> None:
    config.algorithm.adv_estimator = "remax"
    config.actor_rollout_ref.rollout.temperature = 0.7


def is_greedy(payload: dict[str, Any]) -> bool:
    params = payload["sampling_params"]
    return {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}.items() <= params.items()


@pytest.fixture
def greedy_says(play: Callable[..., Respond]) -> Callable[..., Respond]:
    """An engine that answers greedy requests with other texts than sampled ones."""

    def make(greedy: tuple[str, ...], sampled: tuple[str, ...] = (CALL, ANSWER)) -> Respond:
        of_greedy, of_samples = play(*greedy), play(*sampled)
        return lambda payload: (of_greedy if is_greedy(payload) else of_samples)(payload)

    return make


@pytest.mark.parametrize("n", [1, 3])
def test_each_prompt_has_one_greedy_rollout_with_its_tools(
    make_engine: MakeEngine, make_manager: MakeManager, greedy_says: Callable[..., Respond], n: int
) -> None:
    engine = make_engine(greedy_says((CALL, WRONG)))
    out = make_manager(engine.address).generate_sequences(batch_of([sample(0), sample(1, "what is 3 plus 4?")], n=n))
    greedy = [request for request in engine.requests if is_greedy(request)]
    assert len(greedy) == 4  # two prompts, and each calls the tool first
    assert len(engine.requests) - len(greedy) == 4 * n
    assert {request["sampling_params"]["temperature"] for request in engine.requests if request not in greedy} == {0.7}
    assert list(out.non_tensor_batch["row"]) == list(range(2 * n))
    assert list(out.non_tensor_batch["score"]) == [1.0] * 2 * n
    assert list(out.non_tensor_batch["baseline"]) == [0.0] * 2 * n
    metrics = out.meta_info["metrics"]
    assert metrics["rollout/greedy/score/mean"] == 0.0
    assert metrics["rollout/greedy/failed"] == 0.0
    assert metrics["tool_call_counts/mean"] == 1.0


def test_the_samples_metrics_leave_greedy_rollouts_out(
    make_engine: MakeEngine, make_manager: MakeManager, greedy_says: Callable[..., Respond]
) -> None:
    engine = make_engine(greedy_says(("a much longer answer, which ends in #### 7",), (ANSWER,)))
    out = make_manager(engine.address).generate_sequences(batch_of([sample(0)], n=2))
    metrics = out.meta_info["metrics"]
    assert metrics["response_length/max"] == out.batch["responses"].shape[1]
    assert metrics["rollout/greedy/response_length/mean"] > metrics["response_length/max"]
    assert list(out.non_tensor_batch["baseline"]) == [1.0, 1.0]


def test_a_greedy_rollout_that_fails_leaves_its_group_without_a_baseline(
    make_engine: MakeEngine, make_manager: MakeManager, play: Callable[..., Respond]
) -> None:
    sampled, ends = play(ANSWER), len("no")

    def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
        if is_greedy(payload) and len(payload["input_ids"]) > shorter:
            return [10**9], "stop"  # an id outside the vocabulary is a failure of the engine
        return sampled(payload)

    engine = make_engine(respond)
    manager = make_manager(engine.address)
    shorter = 10**6
    manager.generate_sequences(batch_of([sample(0)]))
    shorter = len(engine.requests[0]["input_ids"]) + ends
    out = manager.generate_sequences(batch_of([sample(0), sample(1, "what is 3 plus 4, please?")], n=2))
    assert [math.isnan(value) for value in out.non_tensor_batch["baseline"]] == [False, False, True, True]
    assert out.meta_info["metrics"]["rollout/greedy/failed"] == 1.0
    assert out.meta_info["metrics"]["rollout/env_error_rate"] == 0.0
    assert [failure["uid"] for failure in out.meta_info["failures"]] == ["group-1"]
    assert list(out.non_tensor_batch["score"]) == [1.0] * 4


def test_greedy_failures_count_against_the_budget(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, play: Callable[..., Respond]
) -> None:
    config.actor_rollout_ref.rollout.max_failure_rate = 0.1
    sampled = play(ANSWER)
    engine = make_engine(lambda payload: ([10**9], "stop") if is_greedy(payload) else sampled(payload))
    with pytest.raises(FailureBudgetError, match="1 of 3 trajectories failed"):
        make_manager(engine.address).generate_sequences(batch_of([sample(0)], n=2))


def test_validation_has_none(make_engine: MakeEngine, make_manager: MakeManager) -> None:
    engine = make_engine()
    out = make_manager(engine.address).generate_sequences(batch_of([sample(0)], validate=True))
    assert len(engine.requests) == 2
    assert "baseline" not in out.non_tensor_batch


def test_a_greedy_rollout_is_scored_where_nothing_of_it_would_be_trained_on(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, greedy_says: Callable[..., Respond]
) -> None:
    """It ends with a call: `final_answer` trains nothing of such a trajectory, and leaves samples of its kind out."""
    turns = config.actor_rollout_ref.rollout.multi_turn
    turns.trainable_turns, turns.max_assistant_turns = "final_answer", 1
    engine = make_engine(greedy_says((CALL,), (ANSWER,)))
    out = make_manager(engine.address).generate_sequences(batch_of([sample(0)]))
    assert list(out.non_tensor_batch["baseline"]) == [0.0]


def test_a_reward_model_gets_the_greedy_rollouts_too(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, greedy_says: Callable[..., Respond]
) -> None:
    engine = make_engine(greedy_says((CALL, WRONG)))
    config.reward_model.enable = True
    out = make_manager(engine.address).generate_sequences(batch_of([sample(0), sample(1, "what is 3 plus 4?")], n=2))
    greedy = out.meta_info["greedy"]
    assert list(greedy.non_tensor_batch["row"]) == [4, 5]
    assert [messages[-1]["content"] for messages in greedy.non_tensor_batch["messages"]] == [WRONG] * 2
