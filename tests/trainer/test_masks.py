"""Two masks: what was sampled never changes, what is trained on has one writer."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from product_source import syntax

from agentrl.config import RunConfig
from agentrl.data_proto import DataProto
from agentrl.errors import DataProtoError
from agentrl.rollout.batching import collate
from agentrl.rollout.records import RolloutRow, TokenArrays
from agentrl.trainer import batch_columns
from agentrl.trainer.metrics import reward_metrics
from agentrl.types import AgentLoopOutput, StopReason
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker
from agentrl.workers.critic import CriticWorker

PACKAGE = Path(__file__).parents[2] / "agentrl"
TWO_TURNS = [1, 1, 0, 0, 1, 1]
LAST_TURN = [0, 0, 0, 0, 1, 1]


def row(number: int, score: float, loss_mask: list[int] = TWO_TURNS) -> RolloutRow:
    """Two turns of two tokens with an observation between them."""
    versions = [mark - 1 for mark in TWO_TURNS]
    log_probs = [-5.0 * mark for mark in TWO_TURNS]
    ids = [20 + number + place for place in range(len(TWO_TURNS))]
    output = AgentLoopOutput([5, 6], ids, TWO_TURNS, log_probs, 2, StopReason.COMPLETED, versions)
    tokens = TokenArrays.of(output)
    narrowed = TokenArrays(
        tokens.prompt, tokens.response, tokens.mask, np.array(loss_mask, np.int8), tokens.log_probs, tokens.versions
    )
    return RolloutRow(number, narrowed, StopReason.COMPLETED, score=score)


def batch_of(*rows: RolloutRow) -> DataProto:
    return DataProto(collate(rows, 0), {"uid": ["a"] * len(rows)})


@pytest.fixture
def run_config(tiny_model_dir: Path) -> RunConfig:
    config = RunConfig()
    config.actor_rollout_ref.model.path = str(tiny_model_dir)
    config.actor_rollout_ref.actor.use_kl_loss = True
    config.algorithm.adv_estimator, config.algorithm.use_kl_in_reward = "gae", True
    config.algorithm.rollout_correction.is_level = "token"
    return config


def test_a_whole_step_never_changes_what_was_sampled(run_config: RunConfig) -> None:
    """A turn that is not trained, a row whose log-prob is NaN, a rejected row, a row that breaks the reference."""
    batch = batch_of(row(0, 1.0), row(1, 0.0, LAST_TURN), row(2, 0.0), row(3, 1.0), row(4, 0.0))
    before = batch.batch["response_mask"].clone()
    actor, critic = ActorRolloutRefWorker(run_config), CriticWorker(run_config)
    try:
        actor.init_model(3)
        critic.init_model(3)
        computed = actor.compute_log_prob(batch)
        sampled = before.bool()
        assert (computed.batch["old_log_probs"] != 0).equal(sampled)  # also where nothing is trained
        batch.batch["rollout_log_probs"] = computed.batch["old_log_probs"].clone()
        batch.batch["rollout_log_probs"][3, :2] += 8.0  # the engine disagrees
        computed.batch["old_log_probs"][2, 1] = math.nan
        run_config.algorithm.rollout_correction.rs = (0.5, 2.0)
        metrics = batch_columns.add_old_log_probs(batch, computed, run_config)
        reference = DataProto({"ref_log_prob": batch.batch["old_log_probs"] - 0.1})
        reference.batch["ref_log_prob"][4, 0] = -math.inf
        metrics |= batch_columns.add_finite(batch, reference, "ref_log_prob", instead="old_log_probs")
        metrics |= batch_columns.add_finite(batch, critic.compute_values(batch), "values")
        controller = batch_columns.make_kl_controller(run_config.algorithm.kl_ctrl)
        metrics |= batch_columns.add_rewards(batch, run_config.algorithm, controller)
        batch_columns.add_advantages(batch, ["a"] * 5, run_config.algorithm)
        metrics |= reward_metrics(batch)
        critic.update_critic(batch)
        update = actor.update_actor(batch).meta_info["metrics"]
    finally:
        actor.close()
        critic.close()
    assert batch.batch["response_mask"].equal(before)
    assert batch.batch["loss_mask"].tolist() == [TWO_TURNS, LAST_TURN, [0] * 6, [0] * 6, [0] * 6]
    assert metrics["training/non_finite_rows"] == metrics["training/non_finite_rows/ref_log_prob"] == 1.0
    assert all(map(math.isfinite, [*metrics.values(), *update.values()]))
    assert (batch.batch["advantages"] != 0).equal(sampled)


def with_values(batch: DataProto) -> DataProto:
    sampled = batch.batch["response_mask"]
    batch.batch["values"] = torch.tensor([[0.1, 0.2, 9.0, 9.0, 0.3, 0.4]]).repeat(len(batch), 1) * sampled
    batch.batch["token_level_rewards"] = batch.batch["rm_scores"]
    return batch


@pytest.mark.parametrize("estimator", ["gae", "grpo", "reinforce_plus_plus", "rloo"])
def test_what_is_trained_on_changes_no_advantage(estimator: str) -> None:
    algorithm = RunConfig().algorithm
    algorithm.adv_estimator = estimator
    algorithm.gamma = algorithm.lam = 0.5
    whole, last = (with_values(batch_of(row(0, 1.0, mask), row(1, 0.0, mask))) for mask in (TWO_TURNS, LAST_TURN))
    for batch in (whole, last):
        batch_columns.add_advantages(batch, ["a", "a"], algorithm)
    assert last.batch["advantages"].equal(whole.batch["advantages"])
    assert last.batch["returns"].equal(whole.batch["returns"])


def test_credit_of_a_trained_turn_by_hand() -> None:
    """GRPO: +-0.7071 at every sampled token. GAE: the chain runs over both turns, and skips the observation."""
    algorithm = RunConfig().algorithm
    algorithm.adv_estimator = "grpo"
    batch = with_values(batch_of(row(0, 1.0, LAST_TURN), row(1, 0.0, LAST_TURN)))
    batch_columns.add_advantages(batch, ["a", "a"], algorithm)
    assert batch.batch["advantages"][0].tolist() == pytest.approx([0.7071 * mark for mark in TWO_TURNS], abs=1e-4)
    algorithm.adv_estimator, algorithm.gamma, algorithm.lam = "gae", 1.0, 0.5
    batch_columns.add_advantages(batch, ["a", "a"], algorithm)
    # Row 0: deltas .1, .1, .1, .6; advantages .25, .3, .4, .6 (each delta + half of the next); returns add the values.
    assert batch.batch["returns"][0].tolist() == pytest.approx([0.35, 0.5, 0, 0, 0.7, 1.0])


def test_a_worker_takes_no_other_mask_for_the_loss_mask(run_config: RunConfig) -> None:
    batch = batch_of(row(0, 1.0))
    batch.batch |= {"old_log_probs": batch.batch["rollout_log_probs"], "advantages": torch.ones(1, 6)}
    batch.batch |= {"ref_log_prob": torch.zeros(1, 6), "values": torch.zeros(1, 6), "returns": torch.zeros(1, 6)}
    batch.pop(["loss_mask"])
    for worker, update in (
        (ActorRolloutRefWorker(run_config), "update_actor"),
        (CriticWorker(run_config), "update_critic"),
    ):
        try:
            worker.init_model(1)
            with pytest.raises(DataProtoError, match=r"no \['loss_mask'\]; it has .*'response_mask'"):
                getattr(worker, update)(batch)
        finally:
            worker.close()


def writers(column: str) -> Iterator[str]:
    """Every function of agentrl that puts something under this name into a mapping."""
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE)
        if where.parts[0] == "testing":
            continue
        for function in ast.walk(syntax(path)):
            is_function = isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and any(_writes(node, column) for node in ast.walk(function)):
                yield f"{where}:{function.name}"


def _writes(node: ast.AST, column: str) -> bool:
    if isinstance(node, ast.Dict):
        return any(isinstance(key, ast.Constant) and key.value == column for key in node.keys)
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store | ast.Del)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == column
    )


RECORDS = {"observability/rollout_log.py:rows", "observability/viewer/conversation.py:_left_out"}
"""Write a line of text or an answer, no column."""
OTHER_BATCHES = {"rewards/verl_manager.py:_batch", "trainer/sft_data.py:as_batch"}
"""Write a batch of their own: for a user's class, and of demonstrations."""


@pytest.mark.parametrize(
    ("column", "allowed"),
    [
        ("response_mask", {"rollout/batching.py:collate"}),
        ("loss_mask", {"rollout/batching.py:collate", "trainer/batch_columns.py:narrow_loss_mask"}),
    ],
)
def test_each_mask_has_its_writers_and_no_others(column: str, allowed: set[str]) -> None:
    assert set(writers(column)) - RECORDS - OTHER_BATCHES == allowed
