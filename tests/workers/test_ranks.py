"""Two gloo ranks on Ray give what one rank in this process gives, whoever gets how many rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agentrl.config.root import RunConfig
from agentrl.data_proto import DataProto
from agentrl.single_controller import WorkerGroup
from agentrl.testing.batches import random_batch
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker
from agentrl.workers.critic import CriticWorker
from agentrl.workers.micro_batch_plan import MicroLimits
from agentrl.workers.micro_batches import RowLayout
from agentrl.workers.mini_batches import ROW_ID

MakeGroup = Callable[..., WorkerGroup]

UNEVEN = random_batch([(3, 5), (7, 1), (1, 9), (4, 4), (5, 0), (2, 12), (6, 3)], 261, seed=1)
ONE_ROW = random_batch([(3, 5)], 261, seed=2)
LOPSIDED = random_batch([(3, 5), (7, 2), (1, 9), (4, 4)], 261, seed=3)
LOPSIDED.batch[ROW_ID] = torch.arange(4)
BALANCED = random_batch([(3, 30), (7, 2), (1, 9), (4, 4), (2, 2)], 261, seed=4)
BALANCED.batch[ROW_ID] = torch.arange(5)
ROLLOUTS = random_batch([(60, 5), (60, 1), (60, 9), (60, 4), (50, 0), (50, 12), (50, 3), (50, 2)], 261, rollouts=4)
ROLLOUTS.batch[ROW_ID] = torch.arange(8)
PARTITIONS = {
    id(LOPSIDED): [[3, 0, 2, 1], []],
    id(BALANCED): [[0], [1, 2, 3, 4]],
    id(ROLLOUTS): [[0, 1, 2, 3, 5, 6], [4, 7]],
}
"""Which rows go to which of two ranks; the others are dealt in order."""
BATCHES = [UNEVEN, ONE_ROW, LOPSIDED, BALANCED]


def config_of(make_config: Any) -> RunConfig:
    """Mini-batches of four rows, shuffled, two epochs; micro-batches so small that ranks need different numbers."""
    config: RunConfig = make_config(ppo_mini_batch_size=4, ppo_epochs=2, shuffle=True, ppo_max_token_len_per_gpu=16)
    config.actor_rollout_ref.actor.use_kl_loss = True
    config.actor_rollout_ref.actor.entropy_coeff = 0.01
    return config


def weights_of(group: WorkerGroup, folder: Path) -> dict[str, torch.Tensor]:
    group.export_weights(str(folder))
    return {name: value for file in folder.glob("model*.safetensors") for name, value in load_file(file).items()}


def deal(group: WorkerGroup, batch: DataProto) -> DataProto:
    parts = PARTITIONS.get(id(batch)) if group.world_size == 2 else None
    return batch if parts is None else DataProto(batch.batch, {}, {"rank_partitions": parts})


def run(group: WorkerGroup, batches: list[DataProto], update: str = "update_actor") -> list[dict[str, float]]:
    metrics = [getattr(group, update)(deal(group, batch)).meta_info["metrics"] for batch in batches]
    return [{name: value for name, value in part.items() if not name.startswith("perf/")} for part in metrics]


def assert_close(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], atol=1e-5, rtol=0, msg=name)


def assert_metrics_close(left: list[dict[str, float]], right: list[dict[str, float]]) -> None:
    for one, two in zip(left, right, strict=True):
        assert two == pytest.approx(one, rel=1e-3, abs=1e-5)


def test_two_ranks_equal_one(tmp_path: Path, make_config: Any, make_group: MakeGroup) -> None:
    """Log-probs, several updates with uneven rows and ranks without rows, and checkpoints read by the other world."""
    config = config_of(make_config)
    one, two = (make_group(ranks, ActorRolloutRefWorker, config, "actor") for ranks in (1, 2))
    for batch in BATCHES:
        expected, got = one.compute_log_prob(batch), two.compute_log_prob(deal(two, batch))
        for name in ("old_log_probs", "entropys"):
            torch.testing.assert_close(got.batch[name], expected.batch[name], atol=1e-5, rtol=1e-5)
    start = weights_of(one, tmp_path / "start")
    assert_metrics_close(run(one, BATCHES), run(two, BATCHES))
    after = weights_of(one, tmp_path / "one")
    assert_close(after, weights_of(two, tmp_path / "two"))
    assert max(float((value - start[name]).abs().max()) for name, value in after.items()) > 1e-4

    one.save_checkpoint(str(tmp_path / "by_one"))
    two.save_checkpoint(str(tmp_path / "by_two"))
    expected_metrics = run(one, BATCHES)
    two.load_checkpoint(str(tmp_path / "by_one"))
    assert_metrics_close(expected_metrics, run(two, BATCHES))
    one.load_checkpoint(str(tmp_path / "by_two"))
    assert_close(weights_of(one, tmp_path / "one_resumed"), after)
    assert_metrics_close(expected_metrics, run(one, BATCHES))
    assert_close(weights_of(one, tmp_path / "one_end"), weights_of(two, tmp_path / "two_end"))


@pytest.mark.slow
def test_two_ranks_agree_on_sharing_prompts(tmp_path: Path, make_config: Any, make_group: MakeGroup) -> None:
    """Rank 1 alone would not share: its only trained row has a prompt of its own."""
    config = make_config()
    limits = MicroLimits(16384, share_prompts=True, overhead_tokens=64)
    shared = [
        RowLayout(ROLLOUTS[rows], "response_mask").micro_batches(None, limits).shared
        for rows in ([0, 1, 2, 3, 5, 6], [4, 7])
    ]
    assert shared == [True, False]
    one, two = (make_group(ranks, ActorRolloutRefWorker, config, "actor") for ranks in (1, 2))
    expected, got = one.compute_log_prob(ROLLOUTS), two.compute_log_prob(deal(two, ROLLOUTS))
    torch.testing.assert_close(got.batch["old_log_probs"], expected.batch["old_log_probs"], atol=1e-5, rtol=1e-5)
    assert_metrics_close(run(one, [ROLLOUTS] * 3), run(two, [ROLLOUTS] * 3))
    assert_close(weights_of(one, tmp_path / "one"), weights_of(two, tmp_path / "two"))


@pytest.mark.slow
def test_two_ranks_of_the_critic_equal_one(make_config: Any, make_group: MakeGroup) -> None:
    config = config_of(make_config)
    config.critic.optim.lr = 1e-3
    config.critic.ppo_max_token_len_per_gpu = 16
    one, two = (make_group(ranks, CriticWorker, config) for ranks in (1, 2))
    assert_metrics_close(run(one, BATCHES, "update_critic"), run(two, BATCHES, "update_critic"))
    for batch in BATCHES:
        expected = one.compute_values(batch).batch["values"]
        got = two.compute_values(deal(two, batch)).batch["values"]
        assert expected.abs().max() > 1e-4
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
def test_two_ranks_with_lora_equal_one(tmp_path: Path, make_config: Any, make_group: MakeGroup) -> None:
    """Frozen weights in bfloat16, adapters and the computation in float32; the reference is the actor itself."""
    config = config_of(make_config)
    config.actor_rollout_ref.model.lora_rank = 4
    config.actor_rollout_ref.model.enable_gradient_checkpointing = True
    config.actor_rollout_ref.actor.optim.lr = 1e-3
    config.actor_rollout_ref.actor.fsdp_config.model_dtype = "bfloat16"
    config.actor_rollout_ref.actor.fsdp_config.compute_dtype = "float32"
    one, two = (make_group(ranks, ActorRolloutRefWorker, config, "actor") for ranks in (1, 2))
    start = weights_of(one, tmp_path / "start")
    assert_close(start, weights_of(two, tmp_path / "two_start"))
    references = [group.compute_ref_log_prob(deal(group, LOPSIDED)).batch["ref_log_prob"] for group in (one, two)]
    assert_metrics_close(run(one, BATCHES), run(two, BATCHES))
    for group, reference in zip((one, two), references, strict=True):
        assert torch.equal(group.compute_ref_log_prob(deal(group, LOPSIDED)).batch["ref_log_prob"], reference)
    torch.testing.assert_close(*references, atol=1e-5, rtol=1e-5)
    after = weights_of(one, tmp_path / "one")
    assert_close(after, weights_of(two, tmp_path / "two"))
    moved = {name for name, value in after.items() if not torch.equal(value, start[name])}
    assert moved == {name for name in after if "_proj.weight" in name}
    two.save_checkpoint(str(tmp_path / "by_two"))
    metrics = run(two, BATCHES)
    one.load_checkpoint(str(tmp_path / "by_two"))
    assert_close(weights_of(one, tmp_path / "one_resumed"), after)
    assert_metrics_close(run(one, BATCHES), metrics)


@pytest.mark.slow
def test_two_ranks_of_a_critic_with_lora_equal_one(make_config: Any, make_group: MakeGroup) -> None:
    config = config_of(make_config)
    config.critic.model.lora_rank = 4
    config.critic.optim.lr = 1e-3
    config.critic.ppo_max_token_len_per_gpu = 16
    one, two = (make_group(ranks, CriticWorker, config) for ranks in (1, 2))
    assert_metrics_close(run(one, BATCHES, "update_critic"), run(two, BATCHES, "update_critic"))
    expected, got = (group.compute_values(deal(group, UNEVEN)).batch["values"] for group in (one, two))
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-3)
