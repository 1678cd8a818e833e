"""The sizes of a model from its `config.json`, or from a table of published ones: no weights are needed.

Qwen2.5-7B has 28 layers of width 3584 with 28 heads of 128, 4 heads of keys and values, MLPs of 18944, and 152064 ids
with a head of its own::

    layer   3584 * (3584 + 2 * 512) + 3584 * 3584 + 3 * 3584 * 18944 + norms and biases     233.1 million
    model   28 layers + 2 * 152064 * 3584                                                    7.616 billion
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.hub import config_file

_SUFFIXES = ("-instruct", "-base", "-chat", "-it", "-thinking", "-hf", "-2507", "-coder", "-math")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a model's memory and arithmetic follow from. Widths and counts are as in transformers' configurations.

    Attributes:
        source: where it was read, for messages.
        num_experts: 0: the MLPs are dense.
        experts_per_token: that a token passes through.
        expert_width: of each expert's MLP.
        dense_layers: layers of a mixture whose MLP is dense.
        shared_width: of the MLP of a mixture that every token passes through; 0: there is none.
        exact: False: its kind is not known, and it is counted as a llama of these sizes.
    """

    source: str
    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    dense_layers: int = 0
    shared_width: int = 0
    exact: bool = True

    @property
    def q_width(self) -> int:
        """Of all queries of a token."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Of the keys of a token; its values have the same."""
        return self.kv_heads * self.head_dim

    @property
    def attention(self) -> int:
        """Weights of a layer's attention and norms."""
        matrices = self.hidden * (2 * self.q_width + 2 * self.kv_width)
        bias = (self.q_width + 2 * self.kv_width) if self.qkv_bias else 0
        return matrices + bias + (2 * self.head_dim if self.qk_norm else 0) + 2 * self.hidden

    @property
    def experts(self) -> int:
        """Weights of the experts of a layer, of all of them together."""
        return 3 * self.num_experts * self.hidden * self.expert_width

    @property
    def dense_mlp(self) -> int:
        """Weights of a layer's dense MLP; of a mixture, of those that every token passes through."""
        if not self.num_experts:
            return 3 * self.hidden * self.intermediate
        return self.hidden * self.num_experts + 3 * self.hidden * self.shared_width

    @property
    def layer(self) -> int:
        """Weights of the largest layer."""
        return self.attention + self.dense_mlp + self.experts

    @property
    def ends(self) -> int:
        """Weights outside layers: embedding, head and last norm."""
        return self.vocab * self.hidden * (1 if self.tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        """All weights."""
        dense = self.dense_layers * (3 * self.hidden * self.intermediate - self.experts - self.dense_mlp)
        return self.layers * self.layer + (dense if self.num_experts else 0) + self.ends

    @property
    def all_experts(self) -> int:
        """Weights of all experts of all layers; tensor parallelism in training leaves them whole."""
        return (self.layers - self.dense_layers) * self.experts

    @property
    def multiplied(self) -> int:
        """Weights that a token is multiplied with: without the embedding, and only with its own experts."""
        idle = 0
        if self.num_experts:
            idle = self.all_experts * (self.num_experts - self.experts_per_token) // self.num_experts
        return self.parameters - idle - (0 if self.tied else self.vocab * self.hidden)

    @property
    def kv_elements(self) -> int:
        """Keys and values of a token in all layers."""
        return 2 * self.layers * self.kv_width

    def __str__(self) -> str:
        """`7.62 billion weights, 28 layers, 28 heads, 4 of keys and values`."""
        count = self.parameters / 1e9
        size = f"{count:.2f} billion" if count >= 1 else f"{count * 1000:.0f} million"
        mixture = f", {self.num_experts} experts ({self.experts_per_token} a token)" if self.num_experts else ""
        about = "" if self.exact else "about "
        heads = f"{self.heads} heads, {self.kv_heads} of keys and values"
        return f"{about}{size} weights, {self.layers} layers, {heads}{mixture}"


_BIASED = frozenset({"qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl"})
_NORMED = frozenset({"qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe"})
_KNOWN = _BIASED | _NORMED | {"llama", "mistral", "mixtral"}


def shape_from(config: dict[str, Any], source: str) -> ModelShape:
    """The shape that a `config.json` tells.

    Raises:
        KeyError: it lacks a size that every causal transformer has.
    """
    text = config.get("text_config")
    if isinstance(text, dict):
        config = {**config, **text}
    kind, hidden, heads = str(config.get("model_type", "")), config["hidden_size"], config["num_attention_heads"]
    experts = int(config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts") or 0)
    width = int(config.get("moe_intermediate_size") or config.get("intermediate_size") or 0) if experts else 0
    return ModelShape(
        source=source,
        model_type=kind,
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=config.get("intermediate_size") or 4 * hidden,
        vocab=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", kind not in _KNOWN)),
        qkv_bias=kind in _BIASED or bool(config.get("attention_bias")),
        qk_norm=kind in _NORMED,
        num_experts=experts,
        experts_per_token=int(config.get("num_experts_per_tok") or 0),
        expert_width=width,
        dense_layers=_dense_layers(config) if experts else 0,
        shared_width=int(config.get("shared_expert_intermediate_size") or 0),
        exact=kind in _KNOWN,
    )


def _dense_layers(config: dict[str, Any]) -> int:
    """Layers of a mixture that have a dense MLP."""
    listed, every = config.get("mlp_only_layers") or [], int(config.get("decoder_sparse_step") or 1)
    layers = range(int(config["num_hidden_layers"]))
    first = int(config.get("first_k_dense_replace") or 0)
    return sum(layer in listed or (layer + 1) % every != 0 or layer < first for layer in layers)


def find_shape(path: str) -> ModelShape | None:
    """The shape of a model: from its folder, from the hub's cache, else a published one. Nothing is downloaded.

    Returns:
        None: it is not found there, or its `config.json` lacks a size.
    """
    if (file := config_file(path)) is not None:
        where = path if Path(path).expanduser().is_dir() else f"the hub's cache ({path})"
        try:
            return shape_from(json.loads(file.read_text(encoding="utf-8")), f"config.json of {where}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
            return None
    return published(path)


def published(name: str) -> ModelShape | None:
    """The published shape of a model of the hub, whoever offers it and however it was tuned."""
    short, sizes = _published_sizes(name)
    if sizes is None:
        return None
    source = f"published sizes of {short} (the hub's cache has no {name})"
    return shape_from({"head_dim": None, **sizes}, source)


def published_config(name: str) -> Any:
    """A published shape as a configuration of transformers; None: nothing is known, or its `config.json` is here."""
    from transformers import AutoConfig

    sizes = None if config_file(name) is not None or Path(name).is_dir() else _published_sizes(name)[1]
    return None if sizes is None else AutoConfig.for_model(**{k: v for k, v in sizes.items() if v is not None})


def _published_sizes(name: str) -> tuple[str, dict[str, Any] | None]:
    """The name without owner and variant, and its row of `PUBLISHED`."""
    short = Path(name).name.lower()
    while (suffix := next((end for end in _SUFFIXES if short.endswith(end)), None)) is not None:
        short = short.removesuffix(suffix)
    short = short.replace("qwen2.5-coder", "qwen2.5").replace("qwen2.5-math", "qwen2.5")
    return short, PUBLISHED.get(short)


def _dense(kind: str, sizes: tuple[int, ...], tied: bool, head_dim: int | None = None) -> dict[str, Any]:
    """A row of `PUBLISHED`: hidden, layers, heads, heads of keys and values, MLP, vocabulary."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    named = dict(zip((*names, "intermediate_size", "vocab_size"), sizes, strict=True))
    return {"model_type": kind, "tie_word_embeddings": tied, "head_dim": head_dim, **named}


_MIXTURE = {"num_experts": 128, "num_experts_per_tok": 8}
PUBLISHED: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": _dense("qwen2", (896, 24, 14, 2, 4864, 151936), True),
    "qwen2.5-1.5b": _dense("qwen2", (1536, 28, 12, 2, 8960, 151936), True),
    "qwen2.5-3b": _dense("qwen2", (2048, 36, 16, 2, 11008, 151936), True),
    "qwen2.5-7b": _dense("qwen2", (3584, 28, 28, 4, 18944, 152064), False),
    "qwen2.5-14b": _dense("qwen2", (5120, 48, 40, 8, 13824, 152064), False),
    "qwen2.5-32b": _dense("qwen2", (5120, 64, 40, 8, 27648, 152064), False),
    "qwen2.5-72b": _dense("qwen2", (8192, 80, 64, 8, 29568, 152064), False),
    "qwen3-0.6b": _dense("qwen3", (1024, 28, 16, 8, 3072, 151936), True, 128),
    "qwen3-1.7b": _dense("qwen3", (2048, 28, 16, 8, 6144, 151936), True, 128),
    "qwen3-4b": _dense("qwen3", (2560, 36, 32, 8, 9728, 151936), True, 128),
    "qwen3-8b": _dense("qwen3", (4096, 36, 32, 8, 12288, 151936), False, 128),
    "qwen3-14b": _dense("qwen3", (5120, 40, 40, 8, 17408, 151936), False, 128),
    "qwen3-32b": _dense("qwen3", (5120, 64, 64, 8, 25600, 151936), False, 128),
    "qwen3-30b-a3b": {
        **_dense("qwen3_moe", (2048, 48, 32, 4, 6144, 151936), False, 128),
        **_MIXTURE,
        "moe_intermediate_size": 768,
    },
    "qwen3-235b-a22b": {
        **_dense("qwen3_moe", (4096, 94, 64, 4, 12288, 151936), False, 128),
        **_MIXTURE,
        "moe_intermediate_size": 1536,
    },
    "llama-3.2-1b": _dense("llama", (2048, 16, 32, 8, 8192, 128256), True, 64),
    "llama-3.2-3b": _dense("llama", (3072, 28, 24, 8, 8192, 128256), True, 128),
    "llama-3.1-8b": _dense("llama", (4096, 32, 32, 8, 14336, 128256), False, 128),
    "llama-3.1-70b": _dense("llama", (8192, 80, 64, 8, 28672, 128256), False, 128),
    "smollm2-135m": _dense("llama", (576, 30, 9, 3, 1536, 49152), True, 64),
}
"""Sizes from the `config.json` of each model on the hub, by its name without owner and variant, in small letters."""
