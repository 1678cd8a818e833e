"""Texts to vectors with any encoder of sentence-transformers or Hugging Face; how it wants to be used is a preset."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from agentrl.errors import UserInputError, suggest

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

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
"""Words in the names of large models that are E5 or BGE but want to be used unlike the others: as their files say."""


def find_preset(name: str, model: str) -> Preset | None:
    """The preset of that name; `auto` finds the one that fits the model. None: what the model's own files say.

    Raises:
        UserInputError: an unknown name, or a model that no preset fits and that has no such files.
    """
    if name != "auto":
        if name not in PRESETS:
            raise UserInputError(f"--preset {name!r}.{suggest(name, [*PRESETS, 'auto'])}")
        return PRESETS[name]
    words = set(Path(model).name.lower().replace("_", "-").split("-"))
    if any(family <= words for family in _LAST_TOKEN):
        if _describes_itself(model):
            return None
        raise UserInputError(
            f"--encoder {model}: a model of this name pools by its last token, which no preset does, and it has no "
            "modules.json that says so; choose a --preset if this one does not"
        )
    for family, variants in (("e5", ("instruct",)), ("bge", ("zh", "m3"))):
        if family in words:
            return PRESETS[next((f"{family}-{one}" for one in variants if one in words), family)]
    return None if _describes_itself(model) else PRESETS["plain"]


def _describes_itself(model: str) -> bool:
    """Whether a folder, or a model of the hub, has the files of sentence-transformers."""
    from transformers.utils import cached_file

    try:
        return cached_file(model, "modules.json", _raise_exceptions_for_missing_entries=False) is not None
    except OSError:  # no such model either: loading it says so
        return False


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


def _load(name: str, preset: Preset | None, device: str) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    if preset is None:
        own = SentenceTransformer(name, device=device)
        own.prompts["document"] = (
            own.prompts.get("document") or own.prompts.get("passage") or ""
        )  # older files: passage
        return own
    transformer = Transformer(name)
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), preset.pooling)]
    if preset.normalize:
        modules.append(Normalize())
    prompts = {"query": preset.query_prefix, "document": preset.passage_prefix}
    return SentenceTransformer(modules=modules, device=device, prompts=prompts)


def _limit(max_tokens: int, name: str, model: SentenceTransformer) -> int:
    """The tokens that are wanted, or as many as the model takes.

    Raises:
        UserInputError: no text fits into them.
    """
    # RoBERTa and its kin count positions from the one behind that of the padding.
    tables: list[Any] = [part for path, part in model.named_modules() if path.endswith("position_embeddings")]
    padded = [table for table in tables if getattr(table, "padding_idx", None) is not None]
    positions = [len(table.weight) - (table.padding_idx + 1) for table in padded]
    lowest = int(min(max_tokens, model.max_seq_length or max_tokens, *positions))
    special = model.tokenizer.num_special_tokens_to_add()
    if lowest <= special:
        raise UserInputError(f"--max-tokens {lowest}: wanted more than the {special} special tokens of {name}")
    return lowest


class Encoder:
    """A model that turns texts into vectors.

    Args:
        model: folder or hub name.
        preset: how it wants to be used; None: as its own files say.
        max_tokens: longer texts are cut; the attribute is at most what the model takes.
        device: cpu, cuda, or auto: cuda where there is one.

    Raises:
        UserInputError: the model or the device cannot be used.
    """

    def __init__(self, model: str, preset: Preset | None, max_tokens: int, device: str = "auto") -> None:
        from safetensors import SafetensorError

        self.preset, self.device = preset, _find_device(device)
        self._lock = threading.Lock()
        try:
            self._model = _load(model, preset, self.device)
            self.max_tokens = self._model.max_seq_length = _limit(max_tokens, model, self._model)
            self.passages(["what it cannot do is said now,", "not when the corpus has been read"])
        except (OSError, ValueError, LookupError, RuntimeError, ImportError, SafetensorError) as error:
            reason = str(error).partition("\n")[0]
            raise UserInputError(
                f"--encoder {model}: sentence-transformers cannot use it on {self.device}: {reason}"
            ) from error

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Vectors of queries, of shape (texts, dimension)."""
        return self._encode(self._model.encode_query, texts)

    def passages(self, texts: Sequence[str]) -> Vectors:
        """Vectors of documents, of shape (texts, dimension)."""
        return self._encode(self._model.encode_document, texts)

    def _encode(self, encode: Callable[..., Any], texts: Sequence[str]) -> Vectors:
        # A tokenizer must not be used by two threads: it keeps its padding and truncation in itself.
        with self._lock:
            vectors: Vectors = encode(list(texts), batch_size=len(texts), show_progress_bar=False)
        return vectors.astype(np.float32, copy=False)

    def settings(self) -> dict[str, Any] | None:
        """What an index keeps of it."""
        return None if self.preset is None else asdict(self.preset)
