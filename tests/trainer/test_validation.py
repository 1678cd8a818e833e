"""Aggregation of validation scores, and its run over batches of different widths."""

from __future__ import annotations

import json
import logging
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from agentrl.data_proto import DataProto
from agentrl.trainer.validation import Validator, sample_batch, score_metrics
from agentrl.types import Sample, StopReason


def fields(uids, scores, extras=None, sources=None):
    rows = len(uids)
    column = np.empty(rows, dtype=object)
    column[:] = extras or [{} for _ in range(rows)]
    return {
        "uid": np.array(uids, dtype=object),
        "data_source": np.array(sources or ["math"] * rows, dtype=object),
        "score": np.array(scores, dtype=float),
        "num_turns": np.array([2] * rows, dtype=object),
        "reward_extra_info": column,
    }


def test_statistics_are_per_prompt():
    metrics = score_metrics(fields(["a", "a", "b", "b"], [1, 0, 0, 0]), n=2)
    assert metrics["val-core/math/reward/mean@2"] == 0.25
    assert metrics["val-core/math/reward/std@2"] == 0.25
    assert metrics["val-core/math/reward/best@2"] == 0.5
    assert "val-core/math/reward/maj@2" not in metrics
    assert metrics["val-aux/num_turns/mean"] == 2.0


def test_one_rollout_has_a_mean_only():
    metrics = score_metrics(fields(["a", "b"], [1, 0]), n=1)
    assert {name for name in metrics if name.startswith("val-core")} == {"val-core/math/reward/mean@1"}


def test_accuracy_is_the_core_variable_where_it_is_reported():
    extras = [{"acc": True, "note": "x"}, {"acc": False, "note": "y"}]
    metrics = score_metrics(fields(["a", "b"], [0.9, 0.1], extras), n=1)
    assert metrics["val-core/math/acc/mean@1"] == 0.5
    assert metrics["val-aux/math/reward/mean@1"] == 0.5
    assert not any("note" in name for name in metrics)


@pytest.mark.parametrize("true", [np.bool_(True), np.int64(1), torch.tensor(1.0), Fraction(1), Decimal(1), 1])
def test_numbers_of_every_kind_are_metrics(true):
    metrics = score_metrics(fields(["a", "b"], [0.9, 0.1], [{"acc": true}, {"acc": False}]), n=1)
    assert metrics["val-core/math/acc/mean@1"] == 0.5
    assert "val-core/math/acc/rows" not in metrics


def test_a_metric_that_some_rows_lack_is_averaged_over_those_that_have_it():
    extras = [{}, {"acc": True}, {"acc": None}, {"acc": False, "steps": 4}, {"steps": "many"}, {"steps": float("nan")}]
    metrics = score_metrics(fields(["a", "a", "b", "b", "c", "c"], [0] * 6, extras), n=2)
    assert (metrics["val-core/math/acc/mean@2"], metrics["val-core/math/acc/rows"]) == (0.5, 2.0)
    assert (metrics["val-aux/math/steps/mean@2"], metrics["val-aux/math/steps/rows"]) == (4.0, 1.0)
    assert metrics["val-aux/math/reward/mean@2"] == 0.0
    assert "val-aux/math/reward/rows" not in metrics


def test_what_cannot_be_a_metric_is_said_once(caplog):
    extras = [{"note": "x", "pred": "5", "nan": math.nan}]
    with caplog.at_level(logging.INFO, logger="agentrl"):
        for _ in range(3):
            metrics = score_metrics(fields(["a"], [1], extras), n=1)
    assert not any("nan" in name or "note" in name for name in metrics)
    said = [(record.levelname, record.getMessage().partition(" that")[0]) for record in caplog.records]
    assert said == [("INFO", "the score function reports `note`"), ("WARNING", "the score function reports `nan`")]


def test_majority_vote_counts_predictions_not_scores():
    extras = [{"pred": "5"}, {"pred": "5"}, {"pred": "7"}]
    metrics = score_metrics(fields(["a", "a", "a"], [0, 0, 1], extras), n=3)
    assert metrics["val-core/math/reward/maj@3"] == 0.0
    assert metrics["val-core/math/reward/best@3"] == 1.0


def test_data_sources_are_kept_apart():
    metrics = score_metrics(fields(["a", "b"], [1, 0], sources=["x", "y"]), n=1)
    assert (metrics["val-core/x/reward/mean@1"], metrics["val-core/y/reward/mean@1"]) == (1.0, 0.0)


def answer(batch: DataProto) -> DataProto:
    """Rollouts whose width is the last sample's index plus one: batches differ in width, and one row gets lost."""
    samples = batch.non_tensor_batch["sample"]
    rows = [row for row, sample in enumerate(samples) if sample.index != 1]
    width = samples[-1].index + 1
    ones = torch.ones(len(rows), width, dtype=torch.long)
    return DataProto(
        {
            "prompts": ones[:, :1],
            "responses": ones,
            "attention_mask": torch.ones(len(rows), width + 1, dtype=torch.long),
            "response_mask": ones,
            "loss_mask": ones,
            "rollout_log_probs": -ones.float(),
            "weight_versions": ones,
        },
        {
            "uid": [batch.non_tensor_batch["uid"][row] for row in rows],
            "data_source": ["math"] * len(rows),
            "score": [float(samples[row].index) for row in rows],
            "num_turns": [2] * len(rows),
            "num_tool_calls": [2 if samples[row].index == 4 else 0 for row in rows],
            "stop_reason": [StopReason.COMPLETED] * len(rows),
            "ground_truth": ["1"] * len(rows),
            "messages": [[]] * len(rows),
            "reward_extra_info": [{}] * len(rows),
        },
    )


def test_validator_runs_in_batches_counts_lost_rows_and_dumps(tmp_path):
    samples = [Sample(index, [], "math") for index in range(5)]
    validator = Validator(samples, n=2, batch_size=2, decode=lambda ids: "x" * len(ids), dump_folder=tmp_path, show=1)
    result = validator.run(answer, step=3, weight_version=3)
    assert result.metrics["val-core/math/reward/mean@2"] == pytest.approx((0 + 2 + 3 + 4) / 4)
    assert result.metrics["val-aux/left_out"] == 2.0
    assert result.metrics["val-aux/tool_call_rate"] == pytest.approx(2 / 8)
    assert [item.score for item in result.conversations] == [0.0]
    lines = [json.loads(line) for line in (tmp_path / "3.jsonl").read_text().splitlines()]
    assert len(lines) == 8
    assert lines[-1] | {"output": "xxxxx", "score": 4.0, "step": 3, "response_mask": [1] * 5} == lines[-1]


def test_groups_share_a_uid_and_differ_across_batches():
    samples = [Sample(7, [], "math"), Sample(8, [], "math")]
    first = sample_batch(samples, 2, step=1, weight_version=0)
    second = sample_batch(samples, 2, step=1, weight_version=0, first_group=2)
    uids = list(first.non_tensor_batch["uid"])
    assert uids[0] == uids[1] != uids[2] == uids[3]
    assert not set(uids) & set(second.non_tensor_batch["uid"])
    assert first.meta_info == {"validate": False, "global_step": 1, "weight_version": 0}
