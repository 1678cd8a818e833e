"""Tiny random models and a tokenizer with one id per byte, as Hugging Face folders, made offline in a second."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedTokenizerFast,
)

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PLAIN_TOKENS = ("<tool_call>", "</tool_call>")


def byte_tokenizer(chat_template: str | None = None, more: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Build a tokenizer with one id per byte, ChatML's special tokens and hermes' tool tags.

    Args:
        chat_template: Jinja text; None: the ChatML template with tools that comes with agentrl.
        more: further special tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN_TOKENS])
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in more])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    if chat_template is None:
        chat_template = resources.files("agentrl.configs").joinpath("templates/chatml_tools.jinja").read_text()
    tokenizer.chat_template = chat_template
    return tokenizer


def build_tiny_model(folder: Path | str, family: str = "qwen2", *, seed: int = 0, **overrides: Any) -> Path:
    """Write a random causal language model with `byte_tokenizer` to `folder`.

    Args:
        folder: where to write; created if missing.
        family: `qwen2`, `qwen3`, `llama`, or `qwen3_moe` with four experts.
        seed: seed of the weights.
        **overrides: fields of the model's configuration.

    Returns:
        The folder.
    """
    return _write(folder, AutoModelForCausalLM, byte_tokenizer(), family, seed, overrides)


def build_tiny_classifier(
    folder: Path | str,
    family: str = "qwen2",
    *,
    seed: int = 0,
    per_token: bool = False,
    chat_template: str | None = None,
    **overrides: Any,
) -> Path:
    """Write a random classifier with one label, for a reward model, to `folder`.

    Args:
        folder: where to write; created if missing.
        family: as `build_tiny_model`, or `bert`.
        seed: seed of the weights.
        per_token: a token classifier instead of a sequence classifier.
        chat_template: of its tokenizer, see `byte_tokenizer`.
        **overrides: fields of the model's configuration.

    Returns:
        The folder.
    """
    auto_class = AutoModelForTokenClassification if per_token else AutoModelForSequenceClassification
    return _write(folder, auto_class, byte_tokenizer(chat_template), family, seed, {"num_labels": 1, **overrides})


def _write(
    folder: Path | str,
    auto_class: Any,
    tokenizer: PreTrainedTokenizerFast,
    family: str,
    seed: int,
    overrides: dict[str, Any],
) -> Path:
    folder = Path(folder)
    fields: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "initializer_range": 0.2,
    }
    if family.startswith("qwen3"):
        fields["head_dim"] = 8
    if family == "qwen3_moe":
        fields |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = AutoConfig.for_model(family, **{**fields, **overrides})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto_class.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
