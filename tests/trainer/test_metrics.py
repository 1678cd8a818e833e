"""Numbers of a step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.data_proto import DataProto
from agentrl.rollout.report import mean_max_min
from agentrl.trainer.balance import balance_metrics, partition_by_tokens
from agentrl.trainer.metrics import (
    StageTimer,
    reward_metrics,
    rollout_batch_metrics,
    timing_metrics,
)


def batch() -> DataProto:
    mask = torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    return DataProto(
        {
            "prompts": torch.ones(2, 4, dtype=torch.long),
            "attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]]),
            "response_mask": mask,
            "loss_mask": mask,
            "token_level_scores": torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]),
            "token_level_rewards": torch.tensor([[-0.25, 0.0, 1.0], [0.0, 0.0, 0.0]]),
            "advantages": torch.tensor([[2.0, 99.0, 4.0], [-3.0, 99.0, 99.0]]),
            "returns": torch.tensor([[1.0, 99.0, 2.0], [3.0, 99.0, 99.0]]),
            "values": torch.tensor([[1.0, 99.0, 2.0], [3.0, 99.0, 99.0]]),
        },
    )


def test_reward_metrics_look_at_sampled_tokens_only():
    metrics = reward_metrics(batch())
    assert metrics["critic/rewards/max"] == 0.75
    assert (metrics["critic/advantages/min"], metrics["critic/advantages/max"]) == (-3.0, 4.0)
    assert metrics["critic/returns/mean"] == 2.0
    assert metrics["critic/vf_explained_var"] == pytest.approx(1.0, abs=1e-4)


def test_rollout_metrics_join_what_the_rollouts_report():
    rollouts = batch()
    rollouts.meta_info |= {"metrics": {"num_turns/mean": 3.0}, "weight_version": 5}
    rollouts.batch["weight_versions"] = torch.tensor([[4, -1, 5], [5, -1, -1]])
    rollouts.batch["rm_scores"] = rollouts.batch["token_level_scores"]
    metrics = rollout_batch_metrics(rollouts, max_prompt_length=4)
    assert metrics["num_turns/mean"] == 3.0
    assert (metrics["rollout/staleness/max"], metrics["rollout/staleness/min"]) == (1.0, 0.0)
    assert metrics["critic/score/mean"] == 0.5
    assert metrics["prompt_length/clip_ratio"] == 0.5
    assert metrics["perf/total_num_tokens"] == 11.0


def test_spread_of_nothing_is_nothing():
    assert mean_max_min("x", np.array([])) == {}


def test_stage_timer_adds_up_and_announces():
    seen: list[str] = []
    timer = StageTimer(seen.append)
    for stage in ("gen", "update_actor", "gen"):
        with timer(stage):
            pass
    metrics = timer.metrics()
    assert seen == ["gen", "update_actor", "gen"]
    assert set(metrics) == {"timing_s/gen", "timing_s/update_actor", "timing_s/step"}
    assert metrics["timing_s/step"] >= metrics["timing_s/gen"]


def test_throughput_is_per_rank():
    timer = StageTimer()
    with timer("gen"):
        pass
    with timer("testing"):
        pass
    metrics = timing_metrics(timer, {"perf/total_num_tokens": 400.0}, num_ranks=2)
    assert metrics["perf/throughput"] == pytest.approx(200 / metrics["perf/time_per_step"])
    assert metrics["timing_per_token_ms/gen"] == pytest.approx(timer.seconds["gen"] * 1000 / 400)
    assert "timing_per_token_ms/testing" not in metrics


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 5))
def test_partition_holds_every_row_once_and_is_balanced(lengths, ranks):
    parts = partition_by_tokens(lengths, ranks)
    assert len(parts) == ranks
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    loads = [sum(lengths[row] for row in part) for part in parts]
    assert not lengths or max(loads) - min(loads) <= max(lengths)
    assert len(lengths) < ranks or all(parts)


def test_balance_metrics_compare_with_dealing_in_order():
    metrics = balance_metrics([10, 10, 1, 1], partition_by_tokens([10, 10, 1, 1], 2))
    assert metrics["global_seqlen/minmax_diff"] == 18.0
    assert metrics["global_seqlen/balanced_min"] == metrics["global_seqlen/balanced_max"] == 11.0
