"""The vision tower of the embedded engine: transformers' own module, with the weights of the model folder."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.inference.embedded.model_spec import ModelSpec
from agentrl.inference.embedded.picture_rows import RequestPictures
from agentrl.inference.embedded.weights import Target

_KEPT_FEATURES = 16
"""Conversations whose features are kept: the next turn shows the same pictures, and so do the rollouts of a prompt."""


@dataclass(frozen=True, slots=True)
class Features:
    """What the language model reads of the pictures of one request; M is the number of its placeholders.

    Attributes:
        states: `(M, H)` in the place of the placeholders.
        deeper: `(M, H)` each, added to the hidden states behind the first layers (Qwen3-VL).
    """

    states: Tensor
    deeper: tuple[Tensor, ...]


class VisionTower:
    """The vision part of a model.

    Args:
        spec: of the model.
        dtype: of its weights.
        device: where it runs.
    """

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
        self._module = _build(spec.raw).to(device=device, dtype=dtype).eval().requires_grad_(False)
        self._device, self._dtype = device, dtype
        self._features: OrderedDict[tuple[str, ...], Features] = OrderedDict()
        self.axes = torch.tensor(rotation_axes(spec), device=device)
        self.targets = {f"visual.{name}": Target(weight.data) for name, weight in self._module.named_parameters()}

    def forget(self) -> None:
        """The weights have changed: features must be computed again."""
        self._features.clear()

    def read(self, pictures: RequestPictures) -> Features:
        """The features of a request's pictures."""
        found = self._features.get(pictures.digests)
        if found is None:
            pixels = torch.from_numpy(pictures.inputs["pixel_values"]).to(device=self._device, dtype=self._dtype)
            grids = torch.from_numpy(pictures.inputs["image_grid_thw"]).to(self._device)
            out = self._module(pixels, grid_thw=grids, return_dict=True)
            found = Features(out.pooler_output, tuple(getattr(out, "deepstack_features", None) or ()))
            self._features[pictures.digests] = found
            if len(self._features) > _KEPT_FEATURES:
                self._features.popitem(last=False)
        return found


def rotation_axes(spec: ModelSpec) -> list[int]:
    """Which of time (0), row (1) and column (2) turns each pair of a head's features."""
    sections = [int(size) for size in spec.rope["mrope_section"]]
    if not spec.raw["model_type"].startswith("qwen3"):
        # Sections [16, 24, 24]: 16 times 0, 24 times 1, 24 times 2.
        return [axis % 3 for axis, size in enumerate(sections) for _ in range(size)]
    # Interleaved, sections [24, 20, 20]: 0 1 2 0 1 2 ... up to pair 60, then 0.
    axes = [0] * (spec.head_dim // 2)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = [axis] * len(axes[axis : 3 * sections[axis] : 3])
    return axes


def _build(config: dict[str, Any]) -> torch.nn.Module:
    """The vision tower, with random weights."""
    from transformers import AutoConfig, AutoModel

    whole = AutoConfig.for_model(**config)
    with torch.device("meta"):
        kind = type(AutoModel.from_config(whole).visual)
    tower: torch.nn.Module = kind._from_config(whole.vision_config, attn_implementation="sdpa")
    return tower
