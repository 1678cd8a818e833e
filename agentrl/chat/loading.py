"""Build a renderer from a model folder, refusing folders that cannot give exact tokens."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.chat.renderer import ChatRenderer
from agentrl.chat.vision import load_vision
from agentrl.errors import ConfigError, TemplateError
from agentrl.files import find_file
from agentrl.hub import model_folder
from agentrl.types import JsonDict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_PROBE_TEXTS = (
    "The cat sat on the mat.",
    "  two  spaces, three   and a tab\t\tat last ",
    "line one\n\nline two\r\n   indented\n",
    "price: 1,234,567.89 or 1234567890 in 2024",
    "I'll say it's what they'd DON'T",
    "def f(x):\n    return x[0] + 1  # ok\n",
    '{"name": "f", "arguments": {"x": [1, -2.5e3, null]}}',
    "naïve café e\u0301 Ａ ﬁ",
    "你好，世界 привет мир ☃ 👩‍🔬",
    "snake_case camelCase HTTPServer x**2/(y-1)!=0",
)
"""Texts that tokenizers split differently when their rules for spaces, digits, contractions or letters differ."""


def load_renderer(
    model_path: str,
    tokenizer_path: str | None = None,
    chat_template: str | None = None,
    chat_template_kwargs: JsonDict | None = None,
    *,
    stop_token_ids: Iterable[int] = (),
    trust_remote_code: bool = False,
    max_pixels: int | None = None,
) -> ChatRenderer:
    """Load the tokenizer and template of a model and check them against its configuration.

    Args:
        model_path: Hugging Face folder of the model.
        tokenizer_path: folder of the tokenizer, if it is not the model's.
        chat_template: Jinja text, or the path of a `.jinja` file; None: the tokenizer's own.
        chat_template_kwargs: variables for the template.
        stop_token_ids: ids that end a turn besides those of the model's configuration.
        trust_remote_code: run tokenizer code that comes with the folder.
        max_pixels: pictures with more pixels are made smaller before the model sees them; None: as the model's own
            image processor does.

    Raises:
        TemplateError: no tokenizer, no chat template, or ids that the model does not know.
    """
    source = tokenizer_path or model_path
    if not source:
        raise TemplateError("no model given: set `actor_rollout_ref.model.path` to a Hugging Face folder")
    try:
        folder = model_folder(source)
        model = folder if source == model_path else model_folder(model_path)
    except ConfigError as error:
        raise TemplateError(f"cannot load a tokenizer from {source}: {error}") from error
    try:
        tokenizer = load_tokenizer(str(folder), trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TemplateError(f"cannot load a tokenizer from {source}: {first_line}") from error
    vocab_size = _check_vocabulary(tokenizer, source, model)
    return ChatRenderer(
        tokenizer,
        chat_template=_read_template(chat_template),
        chat_template_kwargs=chat_template_kwargs,
        stop_token_ids=[*stop_token_ids, *_stop_ids(model)],
        vocab_size=vocab_size,
        vision=load_vision(model, max_pixels),
    )


def load_tokenizer(source: str, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder, with the ids that its `tokenizer.json` gives.

    transformers chooses a class by the model's type, and some classes split text by rules of their own, whatever
    `tokenizer.json` says (a Qwen2 model with another tokenizer). The model was trained with the file.

    Raises:
        OSError: the folder holds no tokenizer.
        ValueError: the tokenizer cannot be read.
    """
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    file = Path(source).expanduser() / "tokenizer.json"
    if not file.is_file() or getattr(tokenizer, "backend_tokenizer", None) is None:
        return tokenizer
    original = Tokenizer.from_file(str(file))
    text = _first_other(tokenizer, original)
    if text is None:
        return tokenizer
    plain: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(source)
    if _first_other(plain, original) is not None:
        logger.warning(
            "the tokenizer of %s gives different ids from its tokenizer.json, for example for %r: were the model's "
            "own settings changed?",
            *(source, text),
        )
        return tokenizer
    logger.info(
        "%s: the class %s would split text (such as %r) differently from tokenizer.json; agentrl follows "
        "tokenizer.json, which the model was trained with",
        *(source, type(tokenizer).__name__, text),
    )
    return plain


def _first_other(tokenizer: Any, original: Any) -> str | None:
    """The first of the probe texts whose ids differ."""
    for text in _PROBE_TEXTS:
        ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        if ids != original.encode(text, add_special_tokens=False).ids:
            return text
    return None


def _read_template(chat_template: str | None) -> str | None:
    if chat_template is None or not chat_template.endswith(".jinja"):
        return chat_template
    try:
        return find_file(chat_template).read_text(encoding="utf-8")
    except ConfigError as error:
        raise TemplateError(f"chat template {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TemplateError(f"{path} is not JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def _model_config(folder: Path) -> dict[str, Any]:
    """The text part of `config.json`."""
    config = _read_json(folder / "config.json")
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def _check_vocabulary(tokenizer: Any, source: str, model: Path) -> int | None:
    """The number of ids that the model knows; the tokenizer may make no others."""
    known = _model_config(model).get("vocab_size")
    if not isinstance(known, int):
        return None
    ids = tokenizer.get_vocab()
    token = max(ids, key=ids.__getitem__)
    if ids[token] >= known:
        raise TemplateError(
            f"vocabulary mismatch: the tokenizer of {source} makes ids up to {ids[token]} ({token!r}), but the model "
            f"in {model} knows {known} ids (`vocab_size`): use the model's own tokenizer"
        )
    return known


def _stop_ids(folder: Path) -> list[int]:
    """End-of-sequence ids from the generation and model configuration."""
    ids: list[int] = []
    for config in (_read_json(folder / "generation_config.json"), _model_config(folder)):
        eos = config.get("eos_token_id")
        ids += [eos] if isinstance(eos, int) else list(eos or [])
    return ids
