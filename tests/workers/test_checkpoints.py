"""Shards: bit for bit what was saved, and nothing half-written is taken."""

from __future__ import annotations

import pickle
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.data_proto import DataProto
from agentrl.errors import CheckpointError
from agentrl.testing.batches import random_batch
from agentrl.testing.models import build_tiny_model
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker

BATCHES = [random_batch([(3, 5), (7, 1), (1, 9), (4, 4)], 261, seed=seed) for seed in range(3)]


def state(worker: ActorRolloutRefWorker) -> dict[str, torch.Tensor]:
    assert worker.model.optimizer is not None
    live = {**worker.model.state_tensors(), **worker.model.optimizer.state_tensors()}
    return {name: getattr(value, "full_tensor", value.clone)().clone() for name, value in live.items()}


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    assert all(torch.equal(value, right[name]) for name, value in left.items())


def train(worker: ActorRolloutRefWorker, batches: list[DataProto]) -> list[dict[str, float]]:
    metrics = [worker.update_actor(batch).meta_info["metrics"] for batch in batches]
    return [{name: value for name, value in part.items() if name.startswith("actor/")} for part in metrics]


def test_round_trip_is_exact_and_goes_on_alike(tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    config = make_config(ppo_mini_batch_size=2, shuffle=True)
    config.actor_rollout_ref.actor.optim.warmup_style = "cosine"
    first = make_actor(config)
    train(first, BATCHES[:2])
    first.save_checkpoint(str(tmp_path / "actor"))
    random_numbers = torch.rand(4)
    second = make_actor(config)
    torch.manual_seed(99)
    second.load_checkpoint(str(tmp_path / "actor"))
    assert torch.equal(torch.rand(4), random_numbers)
    assert_same(state(first), state(second))
    assert train(first, BATCHES[2:]) == train(second, BATCHES[2:])
    assert_same(state(first), state(second))


def test_a_model_that_has_not_learned_yet(tmp_path: Path, make_actor: Any) -> None:
    first, second = make_actor(), make_actor()
    first.save_checkpoint(str(tmp_path))
    train(second, BATCHES[:1])
    second.load_checkpoint(str(tmp_path))
    assert_same(state(first), state(second))
    assert train(first, BATCHES[:1]) == train(second, BATCHES[:1])


def test_missing_and_damaged(tmp_path: Path, make_actor: Any) -> None:
    worker = make_actor()
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        worker.load_checkpoint(str(tmp_path / "nowhere"))
    worker.save_checkpoint(str(tmp_path / "whole"))
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    (shard,) = (tmp_path / "cut").glob("*.distcp")
    shard.write_bytes(shard.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cannot read"):
        worker.load_checkpoint(str(tmp_path / "cut"))
    shard.unlink()
    with pytest.raises(CheckpointError, match="cannot read"):
        worker.load_checkpoint(str(tmp_path / "cut"))


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:500])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (".metadata", _cut),
        (".metadata", lambda file: file.write_bytes(b"garbage")),
        (".metadata", lambda file: file.write_bytes(pickle.dumps({"of": "another program"}))),
        ("random_state_rank_0.pt", lambda file: file.write_bytes(b"garbage")),
        ("random_state_rank_0.pt", lambda file: torch.save(["of another program"], file)),
        ("random_state_rank_0.pt", lambda file: torch.save({"cpu": torch.zeros(3)}, file)),
    ],
)
def test_a_small_file_that_is_damaged_or_of_another_program(
    tmp_path: Path, make_actor: Any, name: str, damage: Callable[[Path], object]
) -> None:
    worker = make_actor()
    worker.save_checkpoint(str(tmp_path))
    damage(tmp_path / name)
    with pytest.raises(CheckpointError, match="cannot read the checkpoint"):
        worker.load_checkpoint(str(tmp_path))


def test_a_checkpoint_of_a_larger_model_is_not_read_in_part(tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    """Every tensor of a model of 2 layers is in the checkpoint of one of 3, with the right shape."""
    deeper = build_tiny_model(tmp_path / "deeper", num_hidden_layers=3)
    make_actor(make_config(deeper)).save_checkpoint(str(tmp_path / "saved"))
    worker = make_actor()
    before = state(worker)
    with pytest.raises(CheckpointError, match=r"checkpoint of another model: it holds model\.\S+layers\.2\..* lacks"):
        worker.load_checkpoint(str(tmp_path / "saved"))
    assert_same(state(worker), before)


def test_a_checkpoint_of_another_model(tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    make_actor().save_checkpoint(str(tmp_path / "small"))
    deeper = build_tiny_model(tmp_path / "deeper", num_hidden_layers=3)
    with pytest.raises(CheckpointError, match="cannot read"):
        make_actor(make_config(deeper)).load_checkpoint(str(tmp_path / "small"))
    wider = build_tiny_model(tmp_path / "wider", intermediate_size=96)
    with pytest.raises(CheckpointError, match="cannot read"):
        make_actor(make_config(wider)).load_checkpoint(str(tmp_path / "small"))


def test_no_room_on_the_disk(tmp_path: Path, make_actor: Any) -> None:
    """A limit on file size fails writes as a full disk does."""
    worker = make_actor()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        for write in (worker.save_checkpoint, worker.export_weights, worker.export_hf):
            with pytest.raises(CheckpointError, match="cannot write"):
                write(str(tmp_path / write.__name__))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((tmp_path / "export_weights").glob("*.safetensors"))
