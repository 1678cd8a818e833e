"""The shape of a model, read from its config.json and checked against what the decoder can run."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.chat.picture_tokens import PictureTokens
from agentrl.chat.vision import picture_tokens
from agentrl.errors import UserInputError, suggest

FAMILIES = ("llama", "qwen2", "qwen3")
SEEING = {"qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3"}
"""Models that see pictures, and the family of their language model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """What the decoder needs to know about a Llama, Qwen2 or Qwen3 model."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_positions: int
    rope: dict[str, Any]
    """`rope_type`, `rope_theta` and the settings of that type."""
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    raw: dict[str, Any]
    """The whole config.json."""
    pictures: PictureTokens | None = None
    """The placeholders of a model that sees pictures."""

    @property
    def multiplied_weights(self) -> int:
        """Number of weights that every token is multiplied by: those of the layers and of the head."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        return self.num_layers * (attention + mlp) + self.vocab_size * self.hidden_size


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file gives an empty one."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserInputError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise UserInputError(f"{path}: got {type(value).__name__}, wanted an object")
    return value


def load_spec(folder: str | Path) -> ModelSpec:
    """Read the shape of the model in a Hugging Face folder.

    Raises:
        UserInputError: no such folder, no config.json, or a family or feature that the decoder does not support.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UserInputError(f"{folder}: no config.json; wanted a Hugging Face model folder")
    config = read_json_object(folder / "config.json")
    family = str(config.get("model_type"))
    if family not in (*FAMILIES, *SEEING):
        known = (*FAMILIES, *SEEING)
        raise UserInputError(
            f"{folder}: the embedded engine does not support model_type '{family}'." + suggest(family, known)
        )
    try:
        if family in SEEING:
            return _seeing_spec(folder, family)
        _refuse_unsupported(folder, config)
        return _spec(folder, family, config)
    except KeyError as error:
        raise UserInputError(f"{folder}/config.json: {error} is missing") from error


def _seeing_spec(folder: Path, family: str) -> ModelSpec:
    """The spec of the language model of a model that sees pictures."""
    # Its configuration has two shapes (older ones have the text fields at the top), which transformers knows.
    from transformers import AutoConfig

    whole = AutoConfig.from_pretrained(folder)
    raw = whole.to_dict()
    text = {**whole.get_text_config().to_dict(), "tie_word_embeddings": bool(whole.tie_word_embeddings)}
    _refuse_unsupported(folder, text)
    if "mrope_section" not in _rope_parameters(text):
        raise UserInputError(f"{folder}/config.json: rope_parameters.mrope_section is missing")
    return replace(_spec(folder, SEEING[family], text), raw=raw, pictures=picture_tokens(raw))


def _spec(folder: Path, family: str, config: dict[str, Any]) -> ModelSpec:
    heads = int(config["num_attention_heads"])
    attention_bias = bool(config.get("attention_bias", False))
    return ModelSpec(
        family=family,
        vocab_size=int(config["vocab_size"]),
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        num_layers=int(config["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        max_positions=int(config.get("max_position_embeddings", 2048)),
        rope=_rope_parameters(config),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or attention_bias,
        o_bias=family != "qwen2" and attention_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        eos_token_ids=stop_ids(folder, config),
        raw=config,
    )


def _refuse_unsupported(folder: Path, config: dict[str, Any]) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise UserInputError(f"{folder}: hidden_act '{config['hidden_act']}' is not supported, only silu")
    layer_types = config.get("layer_types") or []
    if config.get("use_sliding_window") or any(kind != "full_attention" for kind in layer_types):
        raise UserInputError(f"{folder}: sliding-window attention is not supported by the embedded engine")
    if config.get("quantization_config"):
        raise UserInputError(f"{folder}: quantized weights are not supported by the embedded engine")


def _rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """Merge the two ways of writing rope settings: `rope_parameters`, or `rope_theta` with `rope_scaling`."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope.setdefault("rope_type", rope.pop("type", "default"))
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    return rope


def stop_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """Stop ids of the model: those of generation_config.json and of config.json."""
    ids: list[int] = []
    for source in (read_json_object(folder / "generation_config.json"), config):
        eos = source.get("eos_token_id")
        ids += eos if isinstance(eos, list) else [eos] if eos is not None else []
    return tuple(dict.fromkeys(int(i) for i in ids))
