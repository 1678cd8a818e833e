"""The critic against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from agentrl.config.root import RunConfig
from agentrl.errors import ConfigError
from agentrl.testing.batches import random_batch
from agentrl.testing.models import build_tiny_model
from agentrl.workers.critic import CriticWorker

LENGTHS = [(3, 5), (7, 1), (1, 9), (4, 4), (5, 0), (2, 12), (6, 3)]
BATCH = random_batch(LENGTHS, 261)


@pytest.fixture
def make_critic(make_config: Any) -> Iterator[Callable[..., CriticWorker]]:
    workers: list[CriticWorker] = []

    def make(**fields: object) -> CriticWorker:
        config: RunConfig = make_config()
        config.critic.optim.lr = 1e-3
        config.critic.optim.weight_decay = 0.0
        for name, value in fields.items():
            setattr(config.critic, name, value)
        worker = CriticWorker(config)
        workers.append(worker)
        worker.init_model(10)
        return worker

    yield make
    for worker in workers:
        worker.close()


def plain_values(backbone: Any, head: torch.nn.Linear) -> torch.Tensor:
    """(B, R), one row at a time: the value of the state before each response token."""
    width = BATCH.batch["responses"].shape[1]
    rows = []
    for row in BATCH:
        kept = row.batch["attention_mask"][0].bool()
        response = int(kept[-width:].sum())
        values = head(backbone(input_ids=row.batch["input_ids"][:, kept]).last_hidden_state)[0, :-1, 0]
        rows.append(torch.nn.functional.pad(values[len(values) - response :], (0, width - response)))
    return torch.stack(rows).where(BATCH.batch["response_mask"].bool(), 0.0)


def test_values_start_at_zero(make_critic: Any) -> None:
    values = make_critic().compute_values(BATCH).batch["values"]
    assert values.shape == BATCH.batch["responses"].shape
    assert not values.any()


def test_updates_equal_plain_pytorch(make_critic: Any, tiny_model_dir: Path) -> None:
    worker = make_critic(cliprange_value=0.5, grad_clip=0.3, ppo_epochs=3, ppo_max_token_len_per_gpu=20)
    backbone, head = AutoModel.from_pretrained(tiny_model_dir), torch.nn.Linear(32, 1)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    parameters = [*backbone.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0)
    mask = BATCH.batch["response_mask"].bool()
    losses = []
    for _ in range(3):
        values = plain_values(backbone, head)
        old, returns = BATCH.batch["values"], BATCH.batch["returns"]
        clipped = torch.clamp(values, old - 0.5, old + 0.5)
        errors = 0.5 * torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)
        loss = errors[mask].mean()
        losses.append(float(loss.detach()))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.3)
        optimizer.step()
        optimizer.zero_grad()
    metrics = worker.update_critic(BATCH).meta_info["metrics"]
    assert metrics["critic/vf_loss"] == pytest.approx(sum(losses) / 3, rel=1e-4)
    assert {"critic/vf_clipfrac", "critic/vpred_mean", "critic/grad_norm", "critic/lr"} <= metrics.keys()
    with torch.no_grad():
        expected = plain_values(backbone, head)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(worker.compute_values(BATCH).batch["values"], expected, atol=1e-4, rtol=1e-3)


def test_the_critic_learns_the_returns(make_critic: Any) -> None:
    worker = make_critic(cliprange_value=100.0)
    losses = [worker.update_critic(BATCH).meta_info["metrics"]["critic/vf_loss"] for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]


def test_a_model_of_its_own(make_critic: Any, tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path, hidden_size=16, num_attention_heads=2)
    config = make_critic().config
    worker = make_critic(model=config.critic.model.model_copy(update={"path": str(folder)}))
    assert worker.model.net.score.weight.shape == (1, 16)
    with pytest.raises(ConfigError, match="no model folder"):
        make_critic(model=config.critic.model.model_copy(update={"path": str(tmp_path / "nowhere")}))


def test_checkpoints_restore_values(make_critic: Any, tmp_path: Path) -> None:
    first, second = make_critic(), make_critic()
    first.update_critic(BATCH)
    first.save_checkpoint(str(tmp_path))
    second.load_checkpoint(str(tmp_path))
    assert torch.equal(first.compute_values(BATCH).batch["values"], second.compute_values(BATCH).batch["values"])
    assert second.updates_done == 1
