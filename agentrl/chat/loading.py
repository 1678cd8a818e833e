"""Build a renderer from a model folder, refusing folders that cannot give exact tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentrl.chat.renderer import ChatRenderer
from agentrl.errors import TemplateError
from agentrl.types import JsonDict


def load_renderer(
    model_path: str,
    tokenizer_path: str | None = None,
    chat_template: str | None = None,
    chat_template_kwargs: JsonDict | None = None,
    *,
    trust_remote_code: bool = False,
) -> ChatRenderer:
    """Load the tokenizer and template of a model and check them against its configuration.

    Args:
        model_path: Hugging Face folder of the model.
        tokenizer_path: folder of the tokenizer, where it is not the model's.
        chat_template: Jinja text, or the path of a `.jinja` file; None: the tokenizer's own.
        chat_template_kwargs: variables for the template.
        trust_remote_code: run tokenizer code that comes with the folder.

    Raises:
        TemplateError: no tokenizer, no chat template, or ids that the model does not know.
    """
    from transformers import AutoTokenizer

    source = tokenizer_path or model_path
    if not source:
        raise TemplateError("no model given: set `actor_rollout_ref.model.path` to a Hugging Face folder")
    looks_like_hub_name = source.count("/") <= 1 and source[0] not in "./~"
    if not Path(source).expanduser().is_dir() and not looks_like_hub_name:
        raise TemplateError(f"cannot load a tokenizer from {source}: there is no such folder")
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TemplateError(f"cannot load a tokenizer from {source}: {first_line}") from error
    vocab_size = _check_vocabulary(tokenizer, source, model_path)
    return ChatRenderer(
        tokenizer,
        chat_template=_read_template(chat_template),
        chat_template_kwargs=chat_template_kwargs,
        stop_token_ids=_stop_ids(Path(model_path)),
        vocab_size=vocab_size,
    )


def _read_template(chat_template: str | None) -> str | None:
    if chat_template is None or not chat_template.endswith(".jinja"):
        return chat_template
    path = Path(chat_template).expanduser()
    builtin = Path(__file__).resolve().parents[1] / "configs" / chat_template
    for candidate in (path, builtin):
        if candidate.is_file():
            return candidate.read_text(encoding="utf-8")
    raise TemplateError(f"chat template {chat_template} does not exist (looked for {path} and {builtin})")


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


def _check_vocabulary(tokenizer: Any, source: str, model_path: str) -> int | None:
    """Number of ids that the model knows; every id of the tokenizer must be one of them."""
    known = _model_config(Path(model_path)).get("vocab_size")
    if not isinstance(known, int):
        return None
    ids = tokenizer.get_vocab()
    token = max(ids, key=ids.__getitem__)
    if ids[token] >= known:
        raise TemplateError(
            f"vocabulary mismatch: the tokenizer of {source} makes ids up to {ids[token]} ({token!r}), but the model "
            f"in {model_path} knows {known} ids (`vocab_size`): use the tokenizer that belongs to the model"
        )
    return known


def _stop_ids(folder: Path) -> list[int]:
    """End-of-sequence ids from the generation and model configuration."""
    ids: list[int] = []
    for config in (_read_json(folder / "generation_config.json"), _model_config(folder)):
        eos = config.get("eos_token_id")
        ids += [eos] if isinstance(eos, int) else list(eos or [])
    return ids
