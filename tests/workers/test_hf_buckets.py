"""The actor's buckets reach the runner `hf`, whose model may hold several of a checkpoint's tensors in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.errors import UserInputError
from agentrl.inference.embedded.options import EngineOptions
from agentrl.inference.hf.model import HFModel
from agentrl.inference.weights.buckets import flatten, unflatten
from agentrl.testing.models import byte_tokenizer
from agentrl.workers.weight_source import WeightSource

TINY = {
    "vocab_size": len(byte_tokenizer()),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"tie_word_embeddings": True},
    "qwen3_moe": {"num_experts": 12} | MOE,
    "mixtral": {"num_local_experts": 3},  # `block_sparse_moe` and `w1`, `w2`, `w3` in its checkpoint
    "gpt_neox": {},  # `embed_in` of its checkpoint has another place in the model
}


def build(folder: Path, family: str, seed: int) -> Path:
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **TINY, **FAMILIES[family])).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_has_the_actors_weights(family: str, tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    old, new = (build(tmp_path / str(seed), family, seed) for seed in (0, 1))
    engine = HFModel(EngineOptions(model=str(old), runner="hf", device="cpu"))
    worker = make_actor(make_config(new))
    buckets = list(WeightSource(worker.model, worker._lm).buckets(20_000))
    assert len(buckets) > 1
    for bucket in buckets:
        engine.load_tensors(dict(unflatten(flatten(bucket.tensors), bucket.specs)))
    wanted = AutoModelForCausalLM.from_pretrained(new).state_dict()
    got = engine.lm.state_dict()
    assert got.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(got[name], wanted[name])] == []


def test_one_expert_is_replaced_and_a_wrong_one_replaces_nothing(tmp_path: Path) -> None:
    engine = HFModel(EngineOptions(model=str(build(tmp_path, "qwen3_moe", 0)), runner="hf", device="cpu"))
    layer = "model.layers.1.mlp.experts"
    both = engine.lm.state_dict()[f"{layer}.gate_up_proj"]
    before = both.clone()
    for tensors, says in (
        ({f"{layer}.12.up_proj.weight": torch.ones(16, 32)}, r"has no weight .*experts\.12\.up_proj"),
        ({f"{layer}.gate_up_proj": torch.ones(12, 32, 32)}, r"has no weight .*gate_up_proj"),
        ({f"{layer}.2.up_proj.weight": torch.ones(32, 16)}, r"got shape \[32, 16\], wanted \[16, 32\]"),
    ):
        with pytest.raises(UserInputError, match=says):
            engine.load_tensors({f"{layer}.0.up_proj.weight": torch.ones(16, 32)} | tensors)
    assert torch.equal(both, before)
    engine.load_tensors({f"{layer}.10.up_proj.weight": torch.ones(16, 32)})
    before[10, 16:] = 1
    assert torch.equal(both, before)
