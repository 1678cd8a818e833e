"""Finished trajectories to one padded batch. Nothing else in agentrl pads.

Prompts are padded on the left, responses on the right, both to the longest of the batch::

    input_ids       p p P P P | R R R r r      p, r: padding
    attention_mask  0 0 1 1 1 | 1 1 1 0 0
    position_ids    0 0 0 1 2 | 3 4 5 5 5
    response_mask               1 0 1 0 0      the sampled tokens; never changes
    loss_mask                   0 0 1 0 0      those of them that are trained on; `trainer.batch_columns` may narrow it
    rm_scores                   0 0 s 0 0      on the last sampled token, or on the turns that the rewards belong to

A trajectory whose first generation is empty has no token to put its score on::

    attention_mask  0 0 1 1 1 | 0 0 0 0 0
    response_mask               0 0 0 0 0
    rm_scores                   s 0 0 0 0      read by the statistics of its group and by the metrics, by no loss
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from agentrl.data_proto import DataProto
from agentrl.rollout.records import RolloutRow
from agentrl.trajectory import NO_VERSION

Array = npt.NDArray[Any]


def collate(rows: Sequence[RolloutRow], pad_id: int) -> dict[str, torch.Tensor]:
    """Pad trajectories into the tensors of a batch (B rows, P prompt and R response tokens).

    Args:
        rows: trajectories; P and R are at least 1, also where all of them are empty.
        pad_id: id that fills the padding.

    Returns:
        `prompts (B,P)`, `responses`, `response_mask`, `loss_mask`, `rollout_log_probs`, `weight_versions`, `rm_scores`
        `(B,R)`, `input_ids`, `attention_mask`, `position_ids` `(B,P+R)`.
    """
    prompts_BP, prompt_valid_BP = pad([row.tokens.prompt for row in rows], pad_id, np.int64, left=True)
    responses_BR, valid_BR = pad([row.tokens.response for row in rows], pad_id, np.int64)
    mask_BR, _ = pad([row.tokens.mask for row in rows], 0, np.int64)
    loss_mask_BR, _ = pad([row.tokens.loss_mask for row in rows], 0, np.int64)
    log_probs_BR, _ = pad([row.tokens.log_probs for row in rows], 0.0, np.float32)
    versions_BR, _ = pad([row.tokens.versions for row in rows], NO_VERSION, np.int64)
    attention_BT = np.concatenate([prompt_valid_BP, valid_BR], axis=1).astype(np.int64)
    arrays = {
        "prompts": prompts_BP,
        "responses": responses_BR,
        "response_mask": mask_BR,
        "loss_mask": loss_mask_BR,
        "input_ids": np.concatenate([prompts_BP, responses_BR], axis=1),
        "attention_mask": attention_BT,
        "rollout_log_probs": log_probs_BR,
        "weight_versions": versions_BR,
        "rm_scores": token_rewards(mask_BR, rows),
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {**tensors, "position_ids": positions(tensors["attention_mask"])}


def join(parts: Sequence[DataProto], pad_id: int) -> DataProto:
    """Several collated batches as one, padded to the longest of all.

    Args:
        parts: batches of one step; their `metrics` become means over the parts.
        pad_id: id that fills the padding.
    """
    prompts = max(part.batch["prompts"].shape[1] for part in parts)
    responses = max(part.batch["responses"].shape[1] for part in parts)
    metas = [{name: value for name, value in part.meta_info.items() if name != "failures"} for part in parts]
    wide = [
        DataProto(_widen(part, prompts, responses, pad_id), part.non_tensor_batch, meta)
        for part, meta in zip(parts, metas, strict=True)
    ]
    joined = DataProto.concat(wide)
    joined.meta_info["failures"] = [failure for part in parts for failure in part.meta_info["failures"]]
    return joined


def _widen(part: DataProto, prompts: int, responses: int, pad_id: int) -> dict[str, torch.Tensor]:
    """The tensors of a batch with more padding."""
    old = part.batch
    left = prompts - old["prompts"].shape[1]
    right = responses - old["responses"].shape[1]
    fills = {"responses": pad_id, "weight_versions": NO_VERSION, "attention_mask": 0, "input_ids": pad_id}
    wide = {name: F.pad(tensor, (0, right), value=fills.get(name, 0)) for name, tensor in old.items()}
    wide["prompts"] = F.pad(old["prompts"], (left, 0), value=pad_id)
    for name in ("input_ids", "attention_mask"):
        wide[name] = F.pad(wide[name], (left, 0), value=fills[name])
    wide["position_ids"] = positions(wide["attention_mask"])
    return wide


def positions(attention_BT: torch.Tensor) -> torch.Tensor:
    """Position of each token among those of its row, not counting padding."""
    return (attention_BT.cumsum(1) - 1).clamp(min=0)


def pad(rows: Sequence[Array], fill: float, dtype: Any, *, left: bool = False) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Ragged rows as one array, and where it holds a row's own values."""
    lengths_B1 = np.array([[len(row)] for row in rows], np.int64).reshape(-1, 1)
    width = int(lengths_B1.max(initial=1))  # 1: a batch in which the model sampled nothing has a column all the same
    places = np.arange(width)
    valid = places >= width - lengths_B1 if left else places < lengths_B1
    padded = np.full((len(rows), width), fill, dtype)
    padded[valid] = np.concatenate([np.zeros(0, dtype), *rows])
    return padded, valid


def token_rewards(mask_BR: Array, rows: Sequence[RolloutRow]) -> Array:
    """Each row's reward: the part placed on its turns is there, the rest is on its last sampled token."""
    rests_B = np.array([row.score - sum(value for _, value in row.placed) for row in rows], np.float32)
    rewards_BR = outcome_scores(mask_BR, rests_B)
    for number, row in enumerate(rows):
        for place, value in row.placed:
            rewards_BR[number, place] += value
    return rewards_BR


def outcome_scores(mask_BR: Array, scores_B: Array) -> Array:
    """Token rewards with each row's score on its last sampled token; on the first place if the row has none."""
    # mask [1, 0, 1, 0]: reversed [0, 1, 0, 1], its first 1 is at 1, and 4 - 1 - 1 = 2 is the last 1. Where no token was
    # sampled, the score is on the first place: padding that no loss reads, but `trainer.batch_columns` does.
    last_B = np.where(mask_BR.any(axis=1), mask_BR.shape[1] - 1 - np.argmax(mask_BR[:, ::-1], axis=1), 0)
    rewards_BR = np.zeros(mask_BR.shape, np.float32)
    rewards_BR[np.arange(len(scores_B)), last_B] = scores_B
    return rewards_BR
