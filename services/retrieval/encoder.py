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


_INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
PRESETS = {
    "e5": Preset(query_prefix="query: ", passage_prefix="passage: "),
    "e5-instruct": Preset(query_prefix=_INSTRUCTION),
    "bge": Preset(query_prefix="Represent this sentence for searching relevant passages: ", pooling="cls"),
    "bge-zh": Preset(query_prefix="为这个句子生成表示以用于检索相关文章：", pooling="cls"),
    "bge-m3": Preset(pooling="cls"),
    "plain": Preset(),
    "dot": Preset(normalize=False),
}
"""`auto` takes those of e5 and bge by the model's name, else what sentence-transformers' files say, else plain."""

_LAST_TOKEN = ({"e5", "mistral"}, {"bge", "gemma2"}, {"bge", "icl"}, {"bge", "code"}, {"bge", "reasoner"})
"""Words in the names of large models that are E5 or BGE but pool unlike the others."""


def find_preset(name: str, model: str) -> Preset:
    """The preset of that name; `auto` finds the one that fits the model.

    Raises:
        UserInputError: an unknown name.
    """
    if name != "auto":
        if name not in PRESETS:
            raise UserInputError(f"--preset {name!r}.{suggest(name, [*PRESETS, 'auto'])}")
        return PRESETS[name]
    return _preset_by_name(Path(model).name) or _sentence_transformers_preset(model) or PRESETS["plain"]


def _preset_by_name(model: str) -> Preset | None:
    """Presets of families whose files do not say how a query differs from a document.

    Raises:
        UserInputError: a model that pools in a way that is not here.
    """
    words = set(model.lower().replace("_", "-").split("-"))
    if any(name <= words for name in _LAST_TOKEN):
        raise UserInputError(
            f"--encoder {model}: a model of this name pools by its last token, which is not supported; "
            "choose a --preset if this one does not"
        )
    for family, variants in (("e5", ("instruct",)), ("bge", ("zh", "m3"))):
        if family in words:
            variant = next((f"{family}-{one}" for one in variants if one in words), family)
            return PRESETS[variant]
    return None


def _sentence_transformers_preset(model: str) -> Preset | None:
    """What the model's own files say, in a folder or on the hub."""
    modules = _read(model, "modules.json")
    if modules is None:
        return None
    types = [module["type"].rsplit(".", 1)[-1] for module in modules]
    unknown = set(types) - {"Transformer", "Pooling", "Normalize"}
    if unknown:
        raise UserInputError(f"{model}: its module {unknown.pop()} is not supported; choose a --preset to ignore it")
    pooling = "mean"
    for module in modules:
        if module["type"].endswith("Pooling"):
            config = _read(model, f"{module['path']}/config.json") or {}
            pooling = _pooling(model, config)
    prompts = (_read(model, "config_sentence_transformers.json") or {}).get("prompts") or {}
    return Preset(
        query_prefix=prompts.get("query") or "",
        passage_prefix=prompts.get("document") or prompts.get("passage") or "",
        pooling=pooling,
        normalize="Normalize" in types,
    )


def _pooling(model: str, config: dict[str, Any]) -> str:
    """How a `Pooling` module pools; newer files name it, older ones have a switch for each way."""
    ways = [
        name.removeprefix("pooling_mode_") for name, on in config.items() if name.startswith("pooling_mode_") and on
    ]
    named = config.get("pooling_mode")
    ways = [named] if isinstance(named, str) else ways or ["mean_tokens"]
    known = {"cls_token": "cls", "cls": "cls", "mean_tokens": "mean", "mean": "mean"}
    if len(ways) != 1 or ways[0] not in known:
        raise UserInputError(f"{model}: it pools by {' and '.join(ways)}, which is not supported; choose a --preset")
    return known[ways[0]]


def _read(model: str, name: str) -> Any:
    """A JSON file of a model; None where it has none."""
    from transformers.utils import cached_file

    try:
        path = cached_file(model, name, _raise_exceptions_for_missing_entries=False)
    except OSError:  # no such model either: loading it says so
        return None
    return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))


def _find_device(name: str) -> str:
    """A device that works; `auto` is cuda where there is one.

    Raises:
        UserInputError: torch cannot use it.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).tolist()
    except (AssertionError, ImportError, RuntimeError) as error:  # which of them depends on the device
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise UserInputError(f"--device {name}: torch cannot use it: {reason}; wanted cpu, cuda or auto") from error
    return name


def _limit(max_tokens: int, name: str, tokenizer: Any, model: Any) -> int:
    """The tokens that are wanted, or as many as the model takes.

    Raises:
        UserInputError: no text fits into them.
    """
    positions = getattr(model.config, "max_position_embeddings", None) or 0
    # RoBERTa and its kin count positions from the one behind that of the padding.
    tables = (part for path, part in model.named_modules() if path.endswith("position_embeddings"))
    skipped = next((table.padding_idx + 1 for table in tables if getattr(table, "padding_idx", None) is not None), 0)
    limits = (max_tokens, tokenizer.model_max_length, positions - skipped)
    lowest = int(min(limit for limit in limits if limit > 0))
    special = tokenizer.num_special_tokens_to_add()
    if lowest <= special:
        raise UserInputError(f"--max-tokens {lowest}: wanted more than the {special} special tokens of {name}")
    return lowest


class Encoder:
    """A model that turns texts into vectors.

    Args:
        model: folder or hub name.
        preset: how it wants to be used.
        max_tokens: longer texts are cut; the attribute is at most what the model takes.
        device: cpu, cuda, or auto: cuda where there is one.

    Raises:
        UserInputError: the model or the device cannot be used.
    """

    def __init__(self, model: str, preset: Preset, max_tokens: int, device: str = "auto") -> None:
        import torch
        from safetensors import SafetensorError
        from transformers import AutoModel, AutoTokenizer

        self._torch, self.preset, self.device = torch, preset, _find_device(device)
        self._lock = threading.Lock()
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(model)
            self._model = AutoModel.from_pretrained(model).to(self.device).eval()
            if self._model.config.is_encoder_decoder:
                self._model = self._model.get_encoder()
            self.max_tokens = _limit(max_tokens, model, self._tokenizer, self._model)
            self._encode(["what it cannot do is said now,", "not when the corpus has been read"])
        except (OSError, ValueError, LookupError, RuntimeError, ImportError, SafetensorError) as error:
            reason = str(error).partition("\n")[0]
            raise UserInputError(f"--encoder {model}: transformers cannot use it on {self.device}: {reason}") from error

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
                texts, padding=True, truncation=True, max_length=self.max_tokens, return_tensors="pt"
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
