"""The tensor work between rollout and update."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from agentrl.config import RunConfig
from agentrl.config.root import KLControlConfig
from agentrl.data_proto import DataProto
from agentrl.errors import RewardError
from agentrl.trainer import batch_columns


def rollouts(scores: list[float], uids: list[str]) -> DataProto:
    rows = len(scores)
    rm_scores = torch.zeros(rows, 3)
    rm_scores[:, 1] = torch.tensor(scores)
    return DataProto(
        {
            "responses": torch.ones(rows, 3, dtype=torch.long),
            "attention_mask": torch.ones(rows, 5, dtype=torch.long),
            "response_mask": torch.tensor([[1, 1, 0]] * rows),
            "loss_mask": torch.tensor([[1, 1, 0]] * rows),
            "rollout_log_probs": torch.tensor([[-1.0, -2.0, 0.0]] * rows),
            "rm_scores": rm_scores,
        },
        {"uid": uids},
    )


def computed(rows: int, old: float = -1.5) -> DataProto:
    mask = torch.tensor([[1.0, 1.0, 0.0]] * rows)
    return DataProto({"old_log_probs": old * mask, "entropys": 2.0 * mask})


def config(**changes: object) -> RunConfig:
    run = RunConfig()
    run.algorithm.adv_estimator = "grpo"
    for name, value in changes.items():
        setattr(run.algorithm if hasattr(run.algorithm, name) else run.algorithm.rollout_correction, name, value)
    return run


def test_groups_without_variance_leave_when_asked():
    batch = rollouts([1, 1, 0, 1, 0], ["a", "a", "b", "b", "c"])
    kept, metrics = batch_columns.choose_rows(batch, drop_flat_groups=True)
    assert list(kept.non_tensor_batch["uid"]) == ["b", "b"]
    assert metrics["rollout/zero_variance_groups"] == 2
    assert batch_columns.groups_with_variance(batch) == 1
    same, _ = batch_columns.choose_rows(batch, drop_flat_groups=False)
    assert len(same) == 5


def test_no_more_groups_are_kept_than_the_step_is_to_have():
    batch = rollouts([1, 1, 0, 1, 0, 1, 1, 0], list("aabbccdd"))
    kept, metrics = batch_columns.choose_rows(batch, True, most_groups=2)
    assert list(kept.non_tensor_batch["uid"]) == list("bbcc")
    assert metrics["rollout/zero_variance_groups"] == 1
    assert len(batch_columns.choose_rows(batch, False, most_groups=4)[0]) == 8


def test_groups_may_be_compared_by_another_number_than_their_rewards():
    """DAPO: rewards of right answers differ by the penalty for their length, but nothing is to be learnt from them."""
    batch = rollouts([1, 0.5, 1, -1, -1, -1], list("aabbcc"))
    batch.non_tensor_batch["score"] = np.array([1, 0.5, 1, -1, -1, -1], dtype=object)
    extras = [{"acc": 1.0}, {"acc": True}, {"acc": 1}, {"acc": 0.0}, {}, {"acc": -1.0}]
    batch.non_tensor_batch["reward_extra_info"] = np.array(extras, dtype=object)
    kept, metrics = batch_columns.choose_rows(batch, True, metric="acc")
    assert list(kept.non_tensor_batch["uid"]) == list("bb")
    assert metrics["rollout/zero_variance_groups"] == 2
    assert batch_columns.groups_with_variance(batch, "acc") == 1
    assert batch_columns.groups_with_variance(batch) == 2
    with pytest.raises(RewardError, match=r"reports no number 'accc'\. Did you mean 'acc'"):
        batch_columns.choose_rows(batch, True, metric="accc")
    batch.non_tensor_batch["reward_extra_info"][0] = {"acc": "right"}
    with pytest.raises(RewardError, match="it is 'right', no finite number"):
        batch_columns.choose_rows(batch, True, metric="acc")


def test_a_group_whose_greedy_rollout_failed_is_left_out_and_the_others_are_measured_by_theirs():
    batch = rollouts([1, 0, 1, 1, 0.5, 0.5], list("aabbcc"))
    batch.non_tensor_batch["baseline"] = np.array([0.25, 0.25, math.nan, math.nan, 0.5, 0.5], dtype=object)
    kept, metrics = batch_columns.choose_rows(batch, drop_flat_groups=False)
    assert list(kept.non_tensor_batch["uid"]) == list("aacc")
    assert metrics["rollout/greedy/groups_left_out"] == 1
    sent, _ = batch_columns.for_workers(kept, 1, 4, balance=False)
    run = config(adv_estimator="remax")
    batch_columns.add_rewards(sent, run.algorithm, batch_columns.make_kl_controller(run.algorithm.kl_ctrl))
    batch_columns.add_advantages(sent, list("aacc"), run.algorithm, batch_columns.greedy_baselines(kept))
    # Each row's reward is on its second sampled token, so its reward-to-go is the same at both.
    assert sent.batch["advantages"].tolist() == [[0.75, 0.75, 0], [-0.25, -0.25, 0], [0, 0, 0], [0, 0, 0]]
    assert sent.batch["returns"][:, 0].tolist() == [1, 0, 0.5, 0.5]


def test_equal_rewards_have_a_gradient_unless_the_greedy_one_is_the_same():
    batch = rollouts([1, 1, 1, 1, 0, 1], list("aabbcc"))
    batch.non_tensor_batch["baseline"] = np.array([0.0, 0.0, 1.0, 1.0, 1.0, 1.0], dtype=object)
    kept, _ = batch_columns.choose_rows(batch, drop_flat_groups=True)
    assert list(kept.non_tensor_batch["uid"]) == list("aacc")
    assert batch_columns.groups_with_variance(batch) == 2


def test_a_greedy_reward_is_compared_in_the_precision_of_the_samples_rewards():
    batch = rollouts([0.1, 0.1], list("aa"))  # float32
    batch.non_tensor_batch["baseline"] = np.array([0.1, 0.1], dtype=object)
    assert batch_columns.groups_with_variance(batch) == 0
    sent, _ = batch_columns.for_workers(batch, [1], 4, balance=False)
    run = config(adv_estimator="remax")
    batch_columns.add_rewards(sent, run.algorithm, batch_columns.make_kl_controller(run.algorithm.kl_ctrl))
    batch_columns.add_advantages(sent, list("aa"), run.algorithm, batch_columns.greedy_baselines(batch))
    assert not sent.batch["advantages"].any()


def test_a_greedy_reward_is_never_compared_with_another_number():
    """All answers are right; their rewards are less than the greedy one by the penalty for their length."""
    batch = rollouts([0.5, 1], list("ab"))
    batch.non_tensor_batch["score"] = np.array([0.5, 1], dtype=object)
    batch.non_tensor_batch["reward_extra_info"] = np.array([{"acc": 1.0}, {"acc": 1.0}], dtype=object)
    batch.non_tensor_batch["baseline"] = np.array([1.0, 1.0], dtype=object)
    assert list(batch_columns.choose_rows(batch, True, metric="acc")[0].non_tensor_batch["uid"]) == ["a"]


def test_rows_that_the_limit_cut_leave_the_loss_and_count_in_their_group():
    batch = rollouts([1, 0, 0], ["a", "a", "a"])
    reasons = ["completed", "length", "max_turns"]
    assert batch_columns.mask_truncated(batch, reasons, wanted=False) == {}
    assert batch.batch["loss_mask"].equal(batch.batch["response_mask"])
    assert batch_columns.mask_truncated(batch, reasons, wanted=True) == {"training/truncated_rows": 1.0}
    assert batch.batch["loss_mask"].tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 0]]
    assert batch.batch["response_mask"].tolist() == [[1, 1, 0]] * 3
    run = config()
    batch_columns.add_rewards(batch, run.algorithm, batch_columns.make_kl_controller(run.algorithm.kl_ctrl))
    batch_columns.add_advantages(batch, ["a"] * 3, run.algorithm)
    assert batch.batch["advantages"][:, 0].tolist() == pytest.approx([1.1547, -0.5774, -0.5774], abs=1e-3)


def test_rollout_log_probs_can_stand_in_for_old_ones():
    batch = rollouts([0, 1], ["a", "a"])
    assert batch_columns.add_old_log_probs(batch, None, config()) == {}
    assert batch.batch["old_log_probs"].equal(batch.batch["rollout_log_probs"])


def test_computed_log_probs_measure_the_mismatch():
    batch = rollouts([0, 1], ["a", "a"])
    metrics = batch_columns.add_old_log_probs(batch, computed(2), config())
    assert metrics["actor/entropy"] == 2.0
    assert metrics["rollout_corr/kl"] == pytest.approx(0.0, abs=1e-6)
    expected = (abs(math.exp(-1.5) - math.exp(-1)) + abs(math.exp(-1.5) - math.exp(-2))) / 2
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(expected, rel=1e-4)
    assert "rollout_is_weights" not in batch.batch


def test_correction_weights_and_rejects_but_rejected_rows_count_in_their_group():
    batch = rollouts([0, 1], ["a", "a"])
    batch.batch["rollout_log_probs"][1] = torch.tensor([-4.0, -5.0, 0.0])
    run = config(is_level="token", rs=(0.5, 2.0))
    metrics = batch_columns.add_old_log_probs(batch, computed(2), run)
    assert batch.batch["rollout_is_weights"][0, 0] == pytest.approx(math.exp(-0.5))
    assert metrics["rollout_corr/rs_seq_masked_fraction"] == 0.5
    batch_columns.add_rewards(batch, run.algorithm, batch_columns.make_kl_controller(run.algorithm.kl_ctrl))
    batch_columns.add_advantages(batch, ["a", "a"], run.algorithm)
    assert batch.batch["advantages"][0, 0] == pytest.approx(-0.7071, abs=1e-3)
    assert batch.batch["loss_mask"].tolist() == [[1, 1, 0], [0, 0, 0]]


def test_rows_with_log_probs_that_are_not_finite_leave_the_loss():
    batch = rollouts([0, 1], ["a", "a"])
    broken = computed(2)
    broken.batch["old_log_probs"][1, 0] = float("nan")
    metrics = batch_columns.add_old_log_probs(batch, broken, config())
    batch_columns.add_rewards(batch, config().algorithm, batch_columns.make_kl_controller(config().algorithm.kl_ctrl))
    batch_columns.add_advantages(batch, ["a", "a"], config().algorithm)
    assert metrics["training/non_finite_rows"] == 1
    assert batch.batch["old_log_probs"].isfinite().all()
    assert batch.batch["loss_mask"].tolist() == [[1, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize("name", ["ref_log_prob", "values"])
def test_a_row_that_a_frozen_model_or_the_critic_cannot_judge_spoils_no_other(name: str):
    batch = rollouts([0, 1, 1], ["a", "a", "b"])
    batch_columns.add_old_log_probs(batch, computed(3), config())
    column = torch.full((3, 3), -1.0)
    column[1, 0], column[2, 2] = math.nan, math.inf  # the latter stands where nothing was sampled
    metrics = batch_columns.add_finite(
        batch, DataProto({name: column}), name, "old_log_probs" if name[0] == "r" else None
    )
    assert metrics == {f"training/non_finite_rows/{name}": 1.0}
    batch.batch |= {"ref_log_prob": batch.batch["old_log_probs"], "values": torch.zeros(3, 3)} | batch.batch
    algorithm = config(use_kl_in_reward=True, adv_estimator="gae").algorithm
    controller = batch_columns.make_kl_controller(KLControlConfig(type="adaptive"))
    batch_columns.add_rewards(batch, algorithm, controller)
    assert math.isfinite(controller.value)
    batch_columns.add_advantages(batch, ["a", "a", "b"], algorithm)
    assert batch.batch["advantages"].isfinite().all()
    assert batch.batch["loss_mask"].tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 0]]


def test_kl_in_reward_and_its_controller():
    batch = rollouts([0, 1], ["a", "a"])
    batch_columns.add_old_log_probs(batch, computed(2), config())
    batch.batch["ref_log_prob"] = torch.tensor([[-1.7, -1.7, 0.0]] * 2)
    run = config(use_kl_in_reward=True)
    run.algorithm.kl_ctrl.type, run.algorithm.kl_ctrl.kl_coef, run.algorithm.kl_ctrl.horizon = "adaptive", 0.1, 100
    controller = batch_columns.make_kl_controller(run.algorithm.kl_ctrl)
    metrics = batch_columns.add_rewards(batch, run.algorithm, controller)
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(0.2)
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.1
    assert batch.batch["token_level_rewards"][1].tolist() == pytest.approx([-0.02, 0.98, 0.0])
    assert controller.value == pytest.approx(0.1 * (1 + 0.2 * 2 / 100))


def test_kl_in_reward_leaves_an_empty_row_its_score():
    """Scores 0.25 of the empty row and 1: without KL the advantages by RLOO are the same."""
    batch = rollouts([0.25, 1], ["a", "a"])
    batch.batch["response_mask"][0] = 0
    run = config(use_kl_in_reward=True, adv_estimator="rloo")
    for column in ("old_log_probs", "ref_log_prob"):
        batch.batch[column] = batch.batch["rollout_log_probs"]
    batch_columns.add_rewards(batch, run.algorithm, batch_columns.make_kl_controller(run.algorithm.kl_ctrl))
    batch_columns.add_advantages(batch, ["a", "a"], run.algorithm)
    assert batch.batch["advantages"][1].tolist() == [0.75, 0.75, 0.0]


def test_workers_get_tensors_and_balanced_rows_of_every_mini_batch():
    batch = rollouts([0] * 4, ["a", "a", "b", "b"])
    batch.batch["attention_mask"] = torch.tensor([[1] * 5, [1] * 5, [0, 0, 1, 1, 1], [0, 0, 1, 1, 1]])
    sent, metrics = batch_columns.for_workers(batch, num_ranks=[2, 1, 2], rows_per_mini_batch=2, balance=True)
    assert sent.non_tensor_batch == {}
    assert sent.batch["row_id"].tolist() == [0, 1, 2, 3]
    assert sent.meta_info["rank_partitions"] == {2: [[0, 2], [1, 3]], 1: [[0, 1, 2, 3]]}
    assert metrics["global_seqlen/minmax_diff"] == 4.0
    assert metrics["global_seqlen/balanced_max"] == metrics["global_seqlen/balanced_min"] == 8.0
    plain, none = batch_columns.for_workers(batch, num_ranks=[2], rows_per_mini_batch=2, balance=False)
    assert "rank_partitions" not in plain.meta_info
    assert none == {}
