"""What a model that sees pictures reads beside the tokens of a micro-batch: pixel values, and positions in three axes.

A run of tokens shows the pictures whose placeholders it holds; those of later observations, which nothing predicts, are
left out with their tokens. Under FSDP every rank must run the vision tower, and then the language model, in every pass:
where a micro-batch shows nothing the tower reads one grey square, and zero times its result is added to the embeddings.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from agentrl.chat.picture_tokens import PictureTokens
from agentrl.chat.vision import MULTI_MODAL, PictureInputs, picture_tokens
from agentrl.errors import DataProtoError, PictureError


@dataclass(frozen=True, slots=True)
class RowMedia:
    """The pictures of the rows of a micro-batch.

    Attributes:
        inputs: of each row, those of the whole trajectory; None: it has none.
        lengths: tokens of each row's run; what lies behind is padding.
        ids: (b, T) the rows' tokens in host memory; None: read those of the micro-batch.
    """

    inputs: list[PictureInputs | None]
    lengths: list[int]
    ids: torch.Tensor | None = None


class PictureReader:
    """Makes the arguments of a model that sees pictures.

    Args:
        tokens: the model's placeholders.
        config: the model's configuration.
    """

    def __init__(self, tokens: PictureTokens, config: Any) -> None:
        self._tokens = tokens
        vision = config.vision_config
        self._grey = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2

    @classmethod
    def of(cls, backbone: Any) -> PictureReader | None:
        """The reader of a model; None: it reads text only."""
        tokens = picture_tokens(backbone.config.to_dict())
        return None if tokens is None else cls(tokens, backbone.config)

    def arguments(self, backbone: Any, input_ids: torch.Tensor, media: RowMedia | None) -> dict[str, torch.Tensor]:
        """The model's keyword arguments for rows `(b, T)`: ids or embeddings, positions `(3, b, T)`, pixels.

        Raises:
            DataProtoError: a row's tokens and pictures do not belong together.
        """
        rows, width = input_ids.shape
        media = media or RowMedia([None] * rows, [width] * rows)
        positions = np.zeros((3, rows, width), np.int64)
        pixels: list[np.ndarray[Any, Any]] = []
        grids: list[np.ndarray[Any, Any]] = []
        ids = input_ids.clone()
        for row, (inputs, length) in enumerate(zip(media.inputs, media.lengths, strict=True)):
            ids[row, length:] = 0  # a later observation may begin there, whose placeholders would want pictures
            run = (input_ids if media.ids is None else media.ids)[row, :length].tolist()
            shown = self._shown(run, inputs)
            positions[:, row, :length] = self._positions(run, shown)
            if shown is not None:
                pixels.append(shown["pixel_values"])
                grids.append(shown["image_grid_thw"])
        places = torch.from_numpy(positions).to(ids.device)
        if not pixels:
            nothing = self._idle(backbone, ids.device)
            embeddings = backbone.get_input_embeddings()(ids)
            return {"inputs_embeds": embeddings + nothing.to(embeddings.dtype), "position_ids": places}
        return {
            "input_ids": ids,
            "position_ids": places,
            "pixel_values": torch.from_numpy(np.concatenate(pixels)).to(ids.device),
            "image_grid_thw": torch.from_numpy(np.concatenate(grids)).to(ids.device),
        }

    def _idle(self, backbone: Any, device: torch.device) -> torch.Tensor:
        """Zero, with a gradient of zero for the vision tower."""
        merge = self._tokens.merge
        pixels = torch.zeros(merge * merge, self._grey, device=device)
        grid = torch.tensor([[1, merge, merge]], device=device)
        seen = backbone.get_image_features(pixels, grid, return_dict=True)
        parts = [*seen.pooler_output, *itertools.chain(*(getattr(seen, "deepstack_features", None) or ()))]
        return torch.stack([part.float().sum() for part in parts]).sum() * 0.0

    def _shown(self, run: Sequence[int], inputs: PictureInputs | None) -> PictureInputs | None:
        """Those of a row's pictures that its run shows: the first ones."""
        if inputs is None:
            return None
        grids = inputs["image_grid_thw"]
        count = len(self._tokens.runs(run))
        if not count:
            return None
        patches = int(grids[:count].prod(axis=1).sum())
        return {"pixel_values": inputs["pixel_values"][:patches], "image_grid_thw": grids[:count]}

    def _positions(self, run: Sequence[int], shown: PictureInputs | None) -> np.ndarray[Any, Any]:
        try:
            return self._tokens.positions(run, [] if shown is None else shown["image_grid_thw"].tolist())
        except PictureError as error:
            raise DataProtoError(f"{MULTI_MODAL}: {error}") from error
