"""Corrections inside an update whose old log-probs are the rollout's, against plain PyTorch written out here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_actor import LENGTHS, VOCAB, gradients, plain_log_probs
from test_on_policy import on_policy, with_pass
from test_ranks import MakeGroup, assert_close, assert_metrics_close, run, weights_of
from transformers import AutoModelForCausalLM

from agentrl.algorithms import Rejection, rollout_correction
from agentrl.config.root import RunConfig
from agentrl.data_proto import DataProto
from agentrl.testing.batches import random_batch
from agentrl.trainer.skipped_steps import without_optimizer_step
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker

OWN_LOSS = """
def ratio(log_probs, old_log_probs, advantages):
    return -advantages * (log_probs - old_log_probs).exp()
"""


def corrected(config: RunConfig, **changes: Any) -> RunConfig:
    config.algorithm.rollout_correction.bypass_old_log_prob = True
    for name, value in changes.items():
        setattr(config.algorithm.rollout_correction, name, value)
    return config


@pytest.fixture
def batch(tiny_model_dir: Path) -> DataProto:
    """Rollout log-probs near the policy's, so that thresholds cut some and keep some."""
    made = random_batch(LENGTHS, VOCAB)
    with torch.no_grad():
        policy, _ = plain_log_probs(AutoModelForCausalLM.from_pretrained(tiny_model_dir), made)
    noise = torch.randn(policy.shape, generator=torch.Generator().manual_seed(1)) * 0.5
    made.batch["old_log_probs"] = torch.where(made.batch["response_mask"].bool(), policy + noise, 0.0)
    return made


def plain_gradients(folder: Path, batch: DataProto, loss: Any) -> dict[str, torch.Tensor]:
    lm = AutoModelForCausalLM.from_pretrained(folder)
    log_probs, _ = plain_log_probs(lm, batch)
    loss(log_probs).backward()
    return {name: value.grad for name, value in lm.named_parameters() if value.grad is not None}


def assert_gradients(worker: ActorRolloutRefWorker, expected: dict[str, torch.Tensor]) -> None:
    for name, value in gradients(worker).items():
        torch.testing.assert_close(value, expected[name], atol=2e-6, rtol=1e-4, msg=name)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric", None])
@pytest.mark.parametrize("normalize", [False, True])
def test_reinforce_weighs_by_the_policy_that_learns(
    level: str | None, normalize: bool, batch: DataProto, make_config: Any, make_actor: Any, tiny_model_dir: Path
) -> None:
    mask, advantages, rollout = (batch.batch[name] for name in ("response_mask", "advantages", "old_log_probs"))
    config = corrected(
        make_config(grad_clip=1e9, ppo_max_token_len_per_gpu=16),
        loss_type="reinforce",
        is_level=level,
        is_threshold=1.3,
        is_batch_normalize=normalize,
    )
    worker = make_actor(config)
    worker.update_actor(batch)

    def loss(log_probs: torch.Tensor) -> torch.Tensor:
        weights, _, _ = rollout_correction(
            log_probs.detach(), rollout, mask, is_level=level, is_threshold=1.3, is_batch_normalize=normalize
        )
        return -(weights * advantages * log_probs * mask).sum() / mask.sum()

    assert_gradients(worker, plain_gradients(tiny_model_dir, batch, loss))


@pytest.mark.parametrize("loss_type", ["ppo_clip", "reinforce"])
def test_rejected_tokens_add_nothing_and_count_in_the_mean(
    loss_type: str, batch: DataProto, make_config: Any, make_actor: Any, tiny_model_dir: Path
) -> None:
    mask, advantages, rollout = (batch.batch[name] for name in ("response_mask", "advantages", "old_log_probs"))
    rules = {"rollout_rs": "token_k1,seq_mean_k3", "rollout_rs_threshold": "0.5_1.8,0.15"}
    config = corrected(make_config(grad_clip=1e9, ppo_max_token_len_per_gpu=16), loss_type=loss_type, **rules)
    worker = make_actor(config)
    metrics = worker.update_actor(batch).meta_info["metrics"]
    seen = {}

    def loss(log_probs: torch.Tensor) -> torch.Tensor:
        rejections = [Rejection("token_k1", 0.5, 1.8), Rejection("seq_mean_k3", 0.0, 0.15)]
        _, kept, _ = rollout_correction(log_probs.detach(), rollout, mask, is_level=None, rejections=rejections)
        seen["kept"] = int(kept.sum())
        ratio = (log_probs - rollout).exp()
        clipped = ratio.clamp(0.8, 1.2)
        worst = torch.maximum(-advantages * ratio, -advantages * clipped)
        ppo = torch.where(advantages < 0, torch.minimum(worst, -advantages * 3.0), worst)
        return ((ppo if loss_type == "ppo_clip" else -advantages * log_probs) * kept).sum() / mask.sum()

    assert_gradients(worker, plain_gradients(tiny_model_dir, batch, loss))
    assert 0 < seen["kept"] < int(mask.sum())
    assert metrics["actor/rollout_rs_masked_fraction"] == pytest.approx(1 - seen["kept"] / int(mask.sum()))


@pytest.mark.slow
def test_two_ranks_correct_as_one_and_take_their_own_log_probs_as_one(
    tmp_path: Path,
    batch: DataProto,
    make_config: Any,
    make_group: MakeGroup,
) -> None:
    """On-policy, where every ratio is 1 and nothing is rejected, one rank computes old log-probs and two do not.

    They learn by a loss in a file, whose gradient is that of REINFORCE there.
    """
    (tmp_path / "own.py").write_text(OWN_LOSS)
    config = corrected(
        make_config(ppo_mini_batch_size=4, ppo_max_token_len_per_gpu=16, policy_loss=f"{tmp_path / 'own.py'}:ratio"),
        loss_type="reinforce",
        is_level="token",
        is_batch_normalize=True,
        rollout_rs="geometric",
        rollout_rs_threshold="1.2",
        rollout_token_veto_threshold=0.3,
    )
    batch.batch["row_id"] = torch.arange(len(batch))
    one, two = (make_group(ranks, ActorRolloutRefWorker, config, "actor") for ranks in (1, 2))
    assert_metrics_close(run(one, [batch] * 2), run(two, [batch] * 2))
    for rows, parts in (([0, 1, 2, 3], [[3, 0], [1, 2]]), ([1, 4, 5, 6], [[0, 1, 2, 3], []])):
        chosen = batch[rows]
        with_old = with_pass(one, chosen)
        one.update_actor(with_old)
        old = two.update_actor(on_policy(chosen, parts)).batch["old_log_probs"]
        torch.testing.assert_close(old, with_old.batch["old_log_probs"], atol=1e-5, rtol=1e-5)
    assert_close(weights_of(one, tmp_path / "one"), weights_of(two, tmp_path / "two"))


@pytest.mark.parametrize("loss_type", ["ppo_clip", "reinforce"])
def test_a_mini_batch_that_is_rejected_as_a_whole_moves_nothing(
    loss_type: str, batch: DataProto, make_config: Any, make_actor: Any
) -> None:
    """After a step, momentum and weight decay alone would move the weights."""
    worker = make_actor(corrected(make_config(), loss_type=loss_type, rollout_rs="token", rollout_rs_threshold="9"))
    worker.update_actor(batch)
    before = {name: value.clone() for name, value in worker.model.full_weights().items()}
    batch.batch["old_log_probs"] = batch.batch["old_log_probs"] - 15.0 * batch.batch["response_mask"]
    metrics = worker.update_actor(batch).meta_info["metrics"]
    for name, value in worker.model.full_weights().items():
        torch.testing.assert_close(value, before[name], atol=0, rtol=0, msg=name)
    assert (metrics["actor/optimizer_steps"], metrics["actor/skipped_steps"]) == (0, 1)
    assert without_optimizer_step(metrics, "actor") == (
        "the rollout correction rejects every token (actor/rollout_rs_masked_fraction)"
    )
    assert worker.count_updates() == 2
    worker.config.actor_rollout_ref.actor.entropy_coeff = 0.01
    assert worker.update_actor(batch).meta_info["metrics"]["actor/optimizer_steps"] == 1
