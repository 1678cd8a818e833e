"""`model_dtype=bfloat16` learns as float32 does: weights that learn are kept in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from agentrl.testing.batches import random_batch

BATCH = random_batch([(3, 5), (7, 1), (1, 9), (4, 4), (5, 0), (2, 12), (6, 3)], 261)
Weights = dict[str, torch.Tensor]


def make(make_config: Any, make_actor: Any, dtype: str, role: str = "actor") -> Any:
    config = make_config()
    for section in (config.actor_rollout_ref.actor, config.actor_rollout_ref.ref):
        section.fsdp_config.model_dtype = dtype
    config.actor_rollout_ref.actor.optim.lr = 1e-6
    return make_actor(config, role)


def weights(worker: Any) -> Weights:
    return {name: value.clone() for name, value in worker.model.full_weights().items()}


def changed(before: Weights, after: Weights) -> float:
    """Share of the numbers that differ."""
    moved = sum(int((after[name] != value).sum()) for name, value in before.items())
    return moved / sum(value.numel() for value in before.values())


def test_twenty_small_steps_change_as_many_numbers_as_in_float32(make_config: Any, make_actor: Any) -> None:
    workers = [make(make_config, make_actor, dtype) for dtype in ("float32", "bfloat16")]
    starts = [weights(worker) for worker in workers]
    for _ in range(20):
        for worker in workers:
            worker.update_actor(BATCH)
    ends = [weights(worker) for worker in workers]
    shares = [changed(start, end) for start, end in zip(starts, ends, strict=True)]
    assert shares[0] > 0.9
    assert shares[1] > shares[0] - 0.02
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, atol=4.5e-5, rtol=0)  # 20 steps of 1e-6 each way, and decay
    moves = [torch.cat([(end[n] - start[n]).flatten() for n in start]) for start, end in zip(starts, ends, strict=True)]
    assert float(torch.cosine_similarity(*moves, dim=0)) > 0.8


def test_what_is_exported_saved_and_resumed_is_float32(tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    first, second = (make(make_config, make_actor, "bfloat16") for _ in range(2))
    first.update_actor(BATCH)
    first.save_checkpoint(str(tmp_path / "shards"))
    second.load_checkpoint(str(tmp_path / "shards"))
    for name, value in first.model.state_tensors().items():
        assert value.dtype is torch.float32
        assert torch.equal(second.model.full_weights()[name], value.full_tensor())
    first.export_hf(str(tmp_path / "folder"))
    exported = load_file(tmp_path / "folder" / "model.safetensors")
    assert {value.dtype for value in exported.values()} == {torch.float32}


def test_frozen_weights_are_stored_as_asked(make_config: Any, make_actor: Any) -> None:
    actor, reference = (make(make_config, make_actor, "bfloat16", role) for role in ("actor", "ref"))
    assert {value.dtype for value in reference.model.net.parameters()} == {torch.bfloat16}
    expected = actor.compute_log_prob(BATCH).batch["old_log_probs"]
    assert torch.equal(reference.compute_ref_log_prob(BATCH).batch["ref_log_prob"], expected)
