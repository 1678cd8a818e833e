"""The pictures of requests in the embedded engine: from `image_data` to marked tokens and their positions.

In the slot table each placeholder of a picture is written as a negative number that depends on the picture's bytes: two
prompts share a prefix only as far as they show the same pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agentrl.chat.vision import PictureInputs, Vision
from agentrl.errors import PictureError, UserInputError
from agentrl.pictures import read_picture


@dataclass(frozen=True, slots=True)
class RequestPictures:
    """The pictures of one request.

    Attributes:
        digests: of the pictures, in the order of their placeholders.
        inputs: what the vision tower reads.
        marks: `(L,)` the prompt as the slot table has it, placeholders as negative numbers.
        places: `(3, L)` positions of the prompt's tokens in time, row and column.
        ordinals: `(L,)` number of each placeholder among the prompt's placeholders.
    """

    digests: tuple[str, ...]
    inputs: PictureInputs
    marks: NDArray[np.int32]
    places: NDArray[np.int64]
    ordinals: NDArray[np.int64]

    @property
    def offset(self) -> int:
        """What the position of a token behind the prompt is more than its index; negative behind large pictures."""
        length: int = self.places.shape[1]
        return int(self.places.max()) + 1 - length


@dataclass(frozen=True, slots=True)
class PictureRows:
    """Hidden states of a step's placeholders.

    Attributes:
        index: `(M,)` which tokens of the step they are.
        states: `(M, H)` what the decoder reads there.
        deeper: `(M, H)` each, added to the hidden states behind the first layers (Qwen3-VL).
    """

    index: Tensor
    states: Tensor
    deeper: tuple[Tensor, ...] = ()


def read_pictures(values: Any, prompt: list[int], vision: Vision | None) -> tuple[list[int], RequestPictures | None]:
    """The pictures of a request, and its prompt with as many placeholders as they take.

    Args:
        values: `image_data` of one prompt: data URIs, base64, or one of them; None: no pictures.
        prompt: its ids, with one placeholder for each picture, or as many as the picture takes.
        vision: how the model sees pictures; None: it reads text only.

    Raises:
        UserInputError: the model sees no pictures, a picture cannot be read, or the prompt shows other ones.
    """
    given = [] if values is None else values if isinstance(values, list) else [values]
    if vision is None:
        if given:
            raise UserInputError("image_data: the model reads text only")
        return prompt, None
    tokens = vision.tokens
    try:
        pictures = [read_picture(value) for value in given]
        whole = tokens.expand(prompt, [vision.count(picture) for picture in pictures])
        if not pictures:
            return whole, None
        inputs = vision.inputs(pictures)
        places = tokens.positions(whole, inputs["image_grid_thw"].tolist())
    except PictureError as error:
        raise UserInputError(f"image_data: {error}") from error
    digests = tuple(picture.digest for picture in pictures)
    ids = np.array(whole, np.int32)
    is_shown = ids == tokens.image
    counts = [length for _, length in tokens.runs(whole)]
    ids[is_shown] = np.repeat([_mark(digest) for digest in digests], counts)
    return whole, RequestPictures(digests, inputs, ids, places, np.cumsum(is_shown) - 1)


def _mark(digest: str) -> int:
    """A negative number for a picture's placeholders."""
    return -1 - int(digest[:7], 16)
