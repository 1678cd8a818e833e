"""What a model makes of pictures: how many tokens each takes, and the numbers that go into its vision tower.

Only the image processor of the model's folder is used: its processor would render the conversation again, and needs
torchvision for videos. tests/chat/test_vision.py compares both on the same conversations.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.chat.picture_tokens import PictureTokens
from agentrl.errors import PictureError, TemplateError
from agentrl.pictures import Picture, smaller

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Values of `model_type` whose pictures agentrl reads."""
PictureInputs = dict[str, npt.NDArray[Any]]
"""`{"pixel_values": (patches, values) float32, "image_grid_thw": (pictures, 3) int64}`, as the model takes them."""
MULTI_MODAL = "multi_modal_inputs"
"""Column of a batch: the `PictureInputs` of each trajectory; None: it shows no picture."""
_KEPT_SMALLER = 256
_KEPT_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class SentPictures:
    """The pictures of one request to an engine.

    Attributes:
        tokens: says where they are among its ids.
        pictures: in the order of their placeholders.
    """

    tokens: PictureTokens
    pictures: list[Picture]


class Vision:
    """Reads pictures for one model.

    Args:
        processor: the model's image processor.
        tokens: the model's placeholders.
        max_pixels: larger pictures are made smaller first; None: only as the processor itself does.
    """

    def __init__(self, processor: Any, tokens: PictureTokens, max_pixels: int | None = None) -> None:
        self.tokens = tokens
        self._processor = processor
        self._max_pixels = max_pixels
        self._kept: OrderedDict[tuple[str, ...], PictureInputs] = OrderedDict()
        self._kept_bytes = 0
        self._smaller: dict[str, Picture] = {}
        self._lock = Lock()

    def shown(self, picture: Picture) -> Picture:
        """The picture as engine and trainer see it: at most `max_pixels`.

        Raises:
            PictureError: it cannot be read.
        """
        if self._max_pixels is None:
            return picture
        shown = self._smaller.get(picture.digest)
        if shown is None:
            if len(self._smaller) >= _KEPT_SMALLER:
                self._smaller.clear()  # by any thread, so what was found or made is returned from here
            shown = self._smaller[picture.digest] = smaller(picture, self._max_pixels)
        return shown

    def count(self, picture: Picture) -> int:
        """The tokens of a picture, from its size alone.

        Raises:
            PictureError: it cannot be read, or no processor takes its shape.
        """
        width, height = self.shown(picture).size
        try:
            patches = int(self._processor.get_number_of_image_patches(height, width, {}))
        except (ValueError, ZeroDivisionError) as error:
            raise PictureError(f"the model takes no picture of {width} x {height} pixels: {error}") from error
        return patches // self.tokens.merge**2

    def check(self, ids: Sequence[int], pictures: Sequence[Picture]) -> None:
        """Compare the placeholders among ids with the pictures that they stand for.

        Raises:
            PictureError: there are more or fewer pictures, or one of another size.
        """
        counts = [self.count(picture) for picture in pictures]
        lengths = [length for _, length in self.tokens.runs(ids)]
        if lengths != counts:
            raise PictureError(f"the ids show pictures of {lengths} tokens, but the conversation has {counts}")

    def inputs(self, pictures: Sequence[Picture]) -> PictureInputs:
        """What the vision tower reads, the pictures one behind the other. The rollouts of a prompt share it.

        Raises:
            PictureError: a picture cannot be read.
        """
        key = tuple(picture.digest for picture in pictures)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        images = [self.shown(picture).open() for picture in pictures]
        try:
            made = self._processor(images=images, return_tensors="np")
        except ValueError as error:
            raise PictureError(f"the model takes no such picture: {error}") from error
        inputs: PictureInputs = {
            "pixel_values": np.ascontiguousarray(made["pixel_values"], np.float32),
            "image_grid_thw": np.asarray(made["image_grid_thw"], np.int64),
        }
        return self._keep(key, inputs)

    def _keep(self, key: tuple[str, ...], inputs: PictureInputs) -> PictureInputs:
        with self._lock:
            if (known := self._kept.get(key)) is not None:  # another rollout of the prompt made it meanwhile
                return known
            self._kept[key] = inputs
            self._kept_bytes += inputs["pixel_values"].nbytes
            while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
                self._kept_bytes -= self._kept.popitem(last=False)[1]["pixel_values"].nbytes
            return inputs


def picture_tokens(config: Mapping[str, Any]) -> PictureTokens | None:
    """The placeholders of a model, from its `config.json`; None: it reads text only, or in a way not known here."""
    vision = config.get("vision_config")
    if config.get("model_type") not in FAMILIES or not isinstance(vision, Mapping):
        return None
    videos = config.get("video_token_id")
    others = () if videos is None else (int(videos),)
    return PictureTokens(int(config["image_token_id"]), others, int(vision.get("spatial_merge_size", 2)))


def load_vision(folder: str | Path, max_pixels: int | None = None) -> Vision | None:
    """The vision part of a model folder; None: the model reads text only.

    Args:
        folder: Hugging Face folder of the model.
        max_pixels: larger pictures are made smaller.

    Raises:
        TemplateError: the folder lacks an image processor, or has one that agentrl cannot use.
    """
    tokens = picture_tokens(_read_config(folder))
    return None if tokens is None else Vision(_load_processor(str(folder)), tokens, max_pixels)


def model_sees_pictures(folder: str | Path) -> bool:
    """Whether the model of a folder sees pictures."""
    return picture_tokens(_read_config(folder)) is not None


def _read_config(folder: str | Path) -> dict[str, Any]:
    file = Path(folder) / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise TemplateError(f"{file} is not JSON: {error}") from error
    return config if isinstance(config, dict) else {}


def _load_processor(folder: str) -> Any:
    from transformers import AutoImageProcessor

    try:
        # The backend on Pillow: the same numbers in every process, with and without torchvision.
        processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    except (OSError, ValueError, KeyError, ImportError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TemplateError(
            f"{folder}: the model sees pictures, but its image processor cannot be loaded: {first_line}"
        ) from error
    if not hasattr(processor, "get_number_of_image_patches"):
        raise TemplateError(
            f"{folder}: got the image processor {type(processor).__name__}, wanted that of {', '.join(FAMILIES)}"
        )
    return processor
