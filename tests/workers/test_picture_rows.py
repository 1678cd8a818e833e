"""Rows with pictures: log-probs of a plain forward pass, and one rank's weights on two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from agentrl.chat.loading import load_renderer
from agentrl.chat.renderer import ChatRenderer
from agentrl.chat.vision import MULTI_MODAL
from agentrl.data_proto import DataProto
from agentrl.errors import DataProtoError
from agentrl.pictures import Picture, content_of, read_picture
from agentrl.rollout.batching import collate
from agentrl.rollout.records import RolloutRow, TokenArrays
from agentrl.testing.vision_models import build_tiny_vision_model
from agentrl.types import StopReason
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker
from agentrl.workers.critic import CriticWorker
from agentrl.workers.micro_batches import RowLayout
from agentrl.workers.mini_batches import ROW_ID
from agentrl.workers.pictures import PictureReader, RowMedia

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("seeing")
    return {name: build_tiny_vision_model(root / name, name, seed=4) for name in FAMILIES}


def picture(width: int, height: int, seed: int = 0) -> Picture:
    return read_picture(np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8))


PARTS: list[tuple[list[Picture], list[Picture], bool]] = [
    ([picture(24, 16)], [], False),
    ([picture(9, 50, 1), picture(32, 32, 2)], [picture(16, 16, 3)], False),
    ([], [], False),
    # The last turn is not trained on: the run ends before the tool's picture, whose tokens still lie behind it.
    ([picture(16, 24, 4)], [picture(24, 24, 5)], True),
    ([], [picture(8, 24, 6)], False),
]
"""Pictures of the prompt, of an observation, and whether only the first turn is trained on."""


def batch_of(renderer: ChatRenderer) -> DataProto:
    assert renderer.vision is not None
    rng = np.random.default_rng(7)
    rows, inputs = [], []
    for number, (asked, seen, first_only) in enumerate(PARTS):
        prompt = renderer.render_prompt([{"role": "user", "content": content_of("look", asked)}])
        first = [*rng.integers(0, 256, 5).tolist(), *renderer.turn_end_ids]
        tokens, mask = list(first), [1] * len(first)
        if seen:
            delta = renderer.delta([{"role": "user", "content": content_of("and", seen)}], sampled_ids=first)
            last = rng.integers(0, 256, 4).tolist()
            tokens, mask = [*tokens, *delta, *last], [*mask, *[0] * len(delta), *[1] * len(last)]
        loss_mask = [1] * len(first) + [0] * (len(mask) - len(first)) if first_only else mask
        arrays = TokenArrays(
            np.array(prompt, np.int32),
            np.array(tokens, np.int32),
            np.array(mask, np.int8),
            np.array(loss_mask, np.int8),
            np.zeros(len(mask), np.float32),
            np.array(mask, np.int32) - 1,
        )
        rows.append(RolloutRow(number, arrays, StopReason.COMPLETED, score=float(number % 2)))
        shown = [*asked, *seen]
        inputs.append(renderer.vision.inputs(shown) if shown else None)
    batch = DataProto(collate(rows, 256), {MULTI_MODAL: inputs})
    mask_BR = batch.batch["response_mask"].float()
    batch.batch["old_log_probs"] = torch.full_like(mask_BR, -5.0) * mask_BR
    batch.batch["advantages"] = (torch.arange(len(rows)).float()[:, None] - 1.5) * mask_BR
    batch.batch["ref_log_prob"] = batch.batch["old_log_probs"]
    batch.batch["values"], batch.batch["returns"] = torch.zeros_like(mask_BR), mask_BR
    batch.batch[ROW_ID] = torch.arange(len(rows))
    return batch


@torch.no_grad()
def plain_log_probs(folder: Path, renderer: ChatRenderer, batch: DataProto) -> torch.Tensor:
    """Row by row, a plain forward pass of transformers over the whole trajectory, (B, R)."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    assert renderer.vision is not None
    out = torch.zeros(batch.batch["responses"].shape)
    width = batch.batch["prompts"].shape[1]
    for row in range(len(batch)):
        valid = batch.batch["attention_mask"][row].bool()
        ids = batch.batch["input_ids"][row][valid][None]
        media = batch.non_tensor_batch[MULTI_MODAL][row] or {}
        arguments: dict[str, Any] = {name: torch.from_numpy(value) for name, value in media.items()}
        if media:
            arguments["mm_token_type_ids"] = (ids == renderer.vision.tokens.image).int()
        logits = model(input_ids=ids, **arguments).logits[0, :-1]
        values = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
        count = int(valid[width:].sum())
        out[row, :count] = values[-count:]
    return out * batch.batch["response_mask"]


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_are_those_of_a_plain_forward_pass(
    folders: dict[str, Path], make_config: Any, make_actor: Any, family: str
) -> None:
    renderer = load_renderer(str(folders[family]))
    batch = batch_of(renderer)
    for tokens in (64, 4096):  # one row at a time, and all together
        config = make_config(folders[family])
        config.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu = tokens
        computed = make_actor(config).compute_log_prob(batch).batch["old_log_probs"]
        torch.testing.assert_close(computed, plain_log_probs(folders[family], renderer, batch), atol=1e-4, rtol=0)


def test_a_run_that_ends_early_shows_the_pictures_before_its_end(folders: dict[str, Path]) -> None:
    from transformers import AutoModel

    renderer = load_renderer(str(folders["qwen2_5_vl"]))
    batch = batch_of(renderer)
    micro = RowLayout(batch, "loss_mask").padded([3])
    backbone = AutoModel.from_pretrained(folders["qwen2_5_vl"])
    reader = PictureReader.of(backbone)
    assert reader is not None
    shown = reader.arguments(backbone, micro.input_ids, micro.media)
    assert renderer.vision is not None
    assert shown["image_grid_thw"].tolist() == renderer.vision.inputs([PARTS[3][0][0]])["image_grid_thw"].tolist()


def test_pictures_that_the_tokens_do_not_show_are_an_error(folders: dict[str, Path]) -> None:
    from transformers import AutoModel

    renderer = load_renderer(str(folders["qwen2_5_vl"]))
    backbone = AutoModel.from_pretrained(folders["qwen2_5_vl"])
    reader = PictureReader.of(backbone)
    assert reader is not None
    assert renderer.vision is not None
    ids = renderer.render_prompt([{"role": "user", "content": content_of("", [picture(24, 16)])}])
    wrong = renderer.vision.inputs([picture(32, 32)])
    with pytest.raises(DataProtoError, match=r"the tokens show pictures of \[6\] tokens, but they have \[16\]"):
        reader.arguments(backbone, torch.tensor([ids]), RowMedia([wrong], [len(ids)]))


@pytest.mark.slow
def test_two_ranks_learn_what_one_learns(
    folders: dict[str, Path], make_config: Any, make_group: Any, tmp_path: Path
) -> None:
    """One rank gets all rows with pictures, the other only text and fewer micro-batches: their passes must match."""
    batch = batch_of(load_renderer(str(folders["qwen3_vl"])))
    config = make_config(folders["qwen3_vl"], ppo_mini_batch_size=3, ppo_epochs=2, ppo_max_token_len_per_gpu=64)
    learned = {}
    for ranks in (1, 2):
        dealt = {"rank_partitions": [[0, 1, 3, 4], [2]]} if ranks == 2 else {}
        actor = make_group(ranks, ActorRolloutRefWorker, config)
        for _ in range(2):
            actor.update_actor(DataProto(batch.batch, batch.non_tensor_batch, dealt))
        actor.export_weights(str(tmp_path / str(ranks)))
        learned[ranks] = load_file(tmp_path / str(ranks) / "model.safetensors")
    before = load_file(folders["qwen3_vl"] / "model.safetensors")
    assert learned[1].keys() == learned[2].keys() == before.keys()
    for name, weight in learned[1].items():
        torch.testing.assert_close(learned[2][name], weight, atol=1e-5, rtol=0)
    moved = [name for name, weight in learned[1].items() if not torch.equal(weight, before[name])]
    assert any("visual.blocks" in name for name in moved)


def test_a_critic_sees_pictures_whatever_rows_it_reads_together(
    folders: dict[str, Path], make_config: Any, make_group: Any
) -> None:
    batch = batch_of(load_renderer(str(folders["qwen2_5_vl"])))
    valued = []
    for tokens in (64, 4096):
        config = make_config(folders["qwen2_5_vl"], ppo_mini_batch_size=5)
        config.critic.ppo_max_token_len_per_gpu = tokens
        critic = make_group(1, CriticWorker, config)
        critic.update_critic(batch)
        valued.append(critic.compute_values(batch).batch["values"])
    torch.testing.assert_close(valued[0], valued[1], atol=1e-5, rtol=0)
    assert valued[0].abs().max() > 0
