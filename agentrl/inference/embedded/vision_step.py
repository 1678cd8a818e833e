"""What pictures change in a step of the embedded engine: the states of placeholders, and every token's rotation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.inference.embedded.decoder import Decoder, Step
from agentrl.inference.embedded.picture_rows import PictureRows, RequestPictures
from agentrl.inference.embedded.slots import SlotTable
from agentrl.inference.embedded.vision import VisionTower


def with_pictures(step: Step, table: SlotTable, model: Decoder) -> Step:
    """Complete a step, as `batch.build` makes it; as it is where no request of it has pictures."""
    tower = model.vision
    if tower is None:
        return step
    slots, positions = step.slots.cpu().numpy(), step.positions.cpu().numpy()
    owners = [(slot, owner) for slot in np.unique(slots).tolist() if (owner := table.owners[slot]) is not None]
    if not any(owner.pictures for _, owner in owners):
        return step
    places = np.stack([positions] * 3)
    shown: list[PictureRows] = []
    for slot, owner in owners:
        if owner.pictures is not None:
            rows = np.flatnonzero(slots == slot)
            places[:, rows] = _places(owner.pictures, positions[rows])
            shown += _rows(tower, owner.pictures, rows, positions[rows])
    # Each pair of a head's features turns with one of the three positions: (D / 2, N) of them, then (N, D / 2).
    turned_by = torch.from_numpy(places).to(tower.axes.device)[tower.axes].t()
    turns = model.rotations.gather(0, turned_by)
    return replace(step, ids=step.ids.clamp(min=0), turns=turns, pictures=_joined(shown))


def _rows(
    tower: VisionTower, pictures: RequestPictures, rows: NDArray[np.int64], positions: NDArray[np.int64]
) -> list[PictureRows]:
    """The states of one slot's placeholders in this step: none, or one entry."""
    of_prompt = positions < len(pictures.marks)
    rows, positions = rows[of_prompt], positions[of_prompt]
    is_shown = pictures.marks[positions] < 0
    if not is_shown.any():
        return []
    device = tower.axes.device
    chosen = torch.from_numpy(pictures.ordinals[positions[is_shown]]).to(device)
    features = tower.read(pictures)
    index = torch.from_numpy(rows[is_shown]).to(device)
    return [PictureRows(index, features.states[chosen], tuple(part[chosen] for part in features.deeper))]


def _places(pictures: RequestPictures, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """`(3, N)` positions of tokens of a request, given their indices."""
    length = pictures.places.shape[1]
    inside = pictures.places[:, np.minimum(positions, length - 1)]
    return np.where(positions < length, inside, positions + pictures.offset)


def _joined(parts: Sequence[PictureRows]) -> PictureRows | None:
    if not parts:
        return None
    deeper = tuple(torch.cat(layer) for layer in zip(*(part.deeper for part in parts), strict=True))
    return PictureRows(torch.cat([part.index for part in parts]), torch.cat([part.states for part in parts]), deeper)
