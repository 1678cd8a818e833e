"""An update of one step takes its own log-probs for the old ones: the same weights, one pass less."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_actor import LENGTHS, VOCAB

from agentrl.algorithms import POLICY_LOSSES
from agentrl.config.root import CHOOSES_TOKENS
from agentrl.data_proto import DataProto
from agentrl.testing.batches import random_batch
from agentrl.trainer.batch_columns import after_update
from agentrl.trainer.skipped_steps import without_optimizer_step
from agentrl.workers.on_policy import ON_POLICY

RARE = 260


def on_policy(batch: DataProto, partitions: list[list[int]] | None = None) -> DataProto:
    """The batch without old log-probs."""
    columns = {name: value for name, value in batch.batch.items() if name != "old_log_probs"}
    rows = {"row_id": torch.arange(len(batch))}
    return DataProto(columns | rows, {}, {ON_POLICY: True} | ({"rank_partitions": partitions} if partitions else {}))


def with_pass(worker: Any, batch: DataProto) -> DataProto:
    batch = DataProto({**batch.batch, "row_id": torch.arange(len(batch))})
    batch.batch["old_log_probs"] = worker.compute_log_prob(batch).batch["old_log_probs"]
    return batch


@pytest.mark.parametrize("loss", [name for name in POLICY_LOSSES if name not in CHOOSES_TOKENS])
def test_two_steps_end_with_the_same_weights(loss: str, make_actor: Any) -> None:
    fields = {"policy_loss": loss, "use_kl_loss": True, "entropy_coeff": 0.01}
    plain, saved = make_actor(**fields), make_actor(**fields)
    for seed in (1, 2):
        batch = random_batch(LENGTHS, VOCAB, seed=seed)
        with_old = with_pass(plain, batch)
        expected = plain.update_actor(with_old).meta_info["metrics"]
        result = saved.update_actor(on_policy(batch))
        torch.testing.assert_close(result.batch["old_log_probs"], with_old.batch["old_log_probs"], atol=1e-6, rtol=1e-6)
        for name in ("pg_loss", "kl_loss", "entropy", "grad_norm", "pg_clipfrac"):
            assert result.meta_info["metrics"][f"actor/{name}"] == pytest.approx(
                expected[f"actor/{name}"], rel=1e-5, abs=1e-6
            )
    for name, value in plain.model.full_weights().items():
        torch.testing.assert_close(saved.model.full_weights()[name], value, atol=1e-7, rtol=1e-6, msg=name)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_row_that_is_not_finite_is_left_out_as_a_pass_before_would_do(
    shuffle: bool, make_actor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = random_batch(LENGTHS, VOCAB - 1)
    batch.batch["input_ids"][3, batch.batch["prompts"].shape[1] - 1] = RARE  # the last token of row 3's prompt
    worker, twin = make_actor(shuffle=shuffle), make_actor(shuffle=shuffle)
    expected = twin.update_actor(on_policy(batch[[0, 1, 2, 4, 5, 6]])).meta_info["metrics"]
    plain = type(worker.model.net).forward

    def forward(net: Any, micro: Any, *args: Any) -> Any:
        log_probs, entropies = plain(net, micro, *args)
        bad = (micro.input_ids == RARE).any(1)[micro.mask.nonzero()[:, 0]]
        return log_probs * torch.where(bad, math.nan, 1.0), entropies  # as in a model, its gradient is no number either

    monkeypatch.setattr(type(worker.model.net), "forward", forward)
    result = worker.update_actor(on_policy(batch))
    assert result.meta_info["metrics"]["actor/skipped_steps"] == 0
    for name in ("pg_loss", "entropy", "grad_norm"):  # the others are all in the one step, whatever their numbers
        assert result.meta_info["metrics"][f"actor/{name}"] == pytest.approx(expected[f"actor/{name}"], rel=1e-5)
    assert result.batch["old_log_probs"].isnan().any(1).tolist() == [row == 3 for row in range(7)]
    for name, value in worker.model.full_weights().items():
        torch.testing.assert_close(value, twin.model.full_weights()[name], atol=5e-6, rtol=1e-5)
    assert worker.count_updates() == 1


def test_a_batch_without_a_finite_row_changes_nothing_and_says_why(
    make_actor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, worker = random_batch(LENGTHS, VOCAB), make_actor()
    plain = type(worker.model.net).forward

    def forward(net: Any, micro: Any, *args: Any) -> Any:
        log_probs, entropies = plain(net, micro, *args)
        return log_probs * math.nan, entropies

    monkeypatch.setattr(type(worker.model.net), "forward", forward)
    result = worker.update_actor(on_policy(batch))
    metrics = result.meta_info["metrics"] | after_update(
        DataProto(batch.batch | {"rollout_log_probs": batch.batch["old_log_probs"]}), result
    )
    assert metrics["training/non_finite_rows"] == 6  # one row has no token
    assert without_optimizer_step(metrics, "actor") == "log-probs are not finite in any row (training/non_finite_rows)"
