"""Tensor-parallel plans that leave out weights beside the matrices they cut are refused before anything is cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel

from agentrl.errors import ConfigError
from agentrl.workers.tensor_parallel import cut_layers

TINY = {"vocab_size": 8, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "pad_token_id": 0, "head_dim": 8}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "fields", "named"),
    [
        ("apertus", {}, r"4 weights .*layers\.0\.mlp\.act_fn\.alpha_p, layers\.0\.mlp\.act_fn\.alpha_n"),
        ("sarvam_moe", {}, r"layers\.0\.self_attn\.q_norm\.weight, layers\.0\.self_attn\.k_norm\.weight"),
        ("cohere", {"use_qk_norm": True}, r"4 weights .*self_attn\.q_norm\.weight"),
        ("phi", {"qk_layernorm": True}, r"8 weights .*self_attn\.q_layernorm\.weight"),
    ],
)
def test_weights_beside_cut_matrices_are_refused_by_name(family: str, fields: dict[str, Any], named: str) -> None:
    with torch.device("meta"):
        backbone = AutoModel.from_config(AutoConfig.for_model(family, **TINY, **fields))
    mesh: Any = SimpleNamespace(size=lambda: 2)
    with pytest.raises(ConfigError, match=f"tensor_parallel_size: got 2, but .*'{family}' leaves out .*{named}"):
        cut_layers(backbone, mesh)
