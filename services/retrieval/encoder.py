"""Texts to vectors with any Hugging Face encoder; how a model wants to be used is a preset."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.errors import UserInputError, suggest

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Preset:
    """How texts become vectors."""

    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: str = "mean"
    """mean over the tokens, or cls: the first token."""
    normalize: bool = True
    """Scale to length 1, so that the inner product is the cosine."""


PRESETS = {
    "e5": Preset(query_prefix="query: ", passage_prefix="passage: "),
    "bge": Preset(query_prefix="Represent this sentence for searching relevant passages: ", pooling="cls"),
    "plain": Preset(),
    "dot": Preset(normalize=False),
}
"""`auto` takes e5 or bge by the model's name, else what a sentence-transformers folder says, else plain."""


def find_preset(name: str, model: str) -> Preset:
    """The preset of that name; `auto` finds the one that fits the model.

    Raises:
        UserInputError: an unknown name.
    """
    if name != "auto":
        if name not in PRESETS:
            raise UserInputError(f"--preset {name!r}.{suggest(name, [*PRESETS, 'auto'])}")
        return PRESETS[name]
    words = Path(model).name.lower().replace("_", "-").split("-")
    for known in ("e5", "bge"):
        if known in words:
            return PRESETS[known]
    return _sentence_transformers_preset(Path(model)) or PRESETS["plain"]


def _sentence_transformers_preset(folder: Path) -> Preset | None:
    """What the model folder itself says."""
    if not (folder / "modules.json").is_file():
        return None
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    types = [module["type"].rsplit(".", 1)[-1] for module in modules]
    unknown = set(types) - {"Transformer", "Pooling", "Normalize"}
    if unknown:
        raise UserInputError(f"{folder}: its module {unknown.pop()} is not supported; choose a --preset to ignore it")
    pooling = "mean"
    for module in modules:
        if module["type"].endswith("Pooling"):
            config = json.loads((folder / module["path"] / "config.json").read_text(encoding="utf-8"))
            pooling = "cls" if config.get("pooling_mode_cls_token") else "mean"
    return Preset(pooling=pooling, normalize="Normalize" in types)


class Encoder:
    """A model that turns texts into vectors.

    Args:
        model: folder or hub name.
        preset: how it wants to be used.
        max_tokens: longer texts are cut.
        device: cpu, cuda, or auto: cuda where there is one.

    Raises:
        UserInputError: the model cannot be loaded.
    """

    def __init__(self, model: str, preset: Preset, max_tokens: int, device: str = "auto") -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        self._torch, self.preset, self._max_tokens = torch, preset, max_tokens
        self.device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(model)
            self._model = AutoModel.from_pretrained(model).to(self.device).eval()
        except (OSError, ValueError, RuntimeError) as error:
            reason = f"transformers cannot load it on {self.device}: {str(error).splitlines()[0]}"
            raise UserInputError(f"--encoder {model}: {reason}") from error
        if self._model.config.is_encoder_decoder:
            self._model = self._model.get_encoder()
        self._lock = threading.Lock()

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Vectors of queries, of shape (texts, dimension)."""
        return self._encode([self.preset.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> Vectors:
        """Vectors of documents, of shape (texts, dimension)."""
        return self._encode([self.preset.passage_prefix + text for text in texts])

    def _encode(self, texts: list[str]) -> Vectors:
        torch = self._torch
        # A tokenizer must not be used by two threads: it keeps its padding and truncation in itself.
        with self._lock, torch.inference_mode():
            inputs: Any = self._tokenizer(
                texts, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt"
            ).to(self.device)
            # (texts, tokens, dimension), then one vector per text
            states = self._model(**inputs).last_hidden_state
            if self.preset.pooling == "cls":
                pooled = states[:, 0]
            else:
                mask = inputs["attention_mask"].unsqueeze(-1).to(states.dtype)
                pooled = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
            if self.preset.normalize:
                pooled = torch.nn.functional.normalize(pooled, dim=-1)
            vectors: Vectors = pooled.float().cpu().numpy()
        return vectors

    def settings(self) -> dict[str, Any]:
        """What an index keeps of it."""
        return asdict(self.preset)
