"""Exported folders load elsewhere and hold exactly the trained weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.config.actor import ModelConfig
from agentrl.testing.batches import random_batch
from agentrl.testing.models import build_tiny_model
from agentrl.workers import export

BATCH = random_batch([(3, 5), (7, 1), (1, 9), (4, 4)], 261)
MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "head_dim": 8,
}
MODELS = [
    ("qwen2", {"tie_word_embeddings": True}),
    ("llama", {"tie_word_embeddings": False}),
    ("qwen3_moe", {"tie_word_embeddings": False, **MOE}),
]


@pytest.mark.parametrize(("family", "fields"), MODELS)
def test_engine_weights_have_the_names_of_the_checkpoint(
    family: str, fields: dict[str, Any], tmp_path: Path, make_config: Any, make_actor: Any
) -> None:
    source = build_tiny_model(tmp_path / "source", family, **fields)
    worker = make_actor(make_config(source))
    original = load_file(source / "model.safetensors")
    worker.export_weights(str(tmp_path / "before"))
    exported = load_file(tmp_path / "before" / "model.safetensors")
    assert worker.export_bytes() == sum(value.numel() * value.element_size() for value in exported.values())
    assert exported.keys() == original.keys()
    assert all(torch.equal(value, original[name]) for name, value in exported.items())
    worker.update_actor(BATCH)
    worker.export_weights(str(tmp_path / "after"))
    assert {file.name for file in (tmp_path / "after").iterdir()} == {"config.json", "model.safetensors"}
    lm = AutoModelForCausalLM.from_pretrained(tmp_path / "after")
    trained = worker.model.full_weights(worker.model.net.lm)
    moved = 0
    for name, parameter in lm.named_parameters():
        assert torch.equal(parameter.detach(), trained[name]), name
        moved += 1
    assert moved == len(trained)
    assert not torch.equal(
        load_file(tmp_path / "after" / "model.safetensors")["model.norm.weight"], exported["model.norm.weight"]
    )


def test_engine_weights_in_the_type_of_the_engine(tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    config = make_config()
    config.actor_rollout_ref.rollout.dtype = "bfloat16"
    make_actor(config).export_weights(str(tmp_path))
    assert {value.dtype for value in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}


def test_a_complete_folder(tiny_model_dir: Path, tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    config = make_config()
    config.actor_rollout_ref.model.chat_template = "{{ messages[0]['content'] }}"
    worker = make_actor(config)
    worker.update_actor(BATCH)
    log_probs = worker.compute_log_prob(BATCH)
    worker.export_hf(str(tmp_path / "huggingface"))
    again = make_config(tmp_path / "huggingface")
    torch.testing.assert_close(
        make_actor(again).compute_log_prob(BATCH).batch["old_log_probs"], log_probs.batch["old_log_probs"]
    )
    architectures = json.loads((tmp_path / "huggingface" / "config.json").read_text())["architectures"]
    assert architectures == ["Qwen2ForCausalLM"]
    tokenizer, original = (AutoTokenizer.from_pretrained(path) for path in (tmp_path / "huggingface", tiny_model_dir))
    assert tokenizer.get_vocab() == original.get_vocab()
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x"


def test_a_model_of_the_hub_is_written_with_its_tokenizer(
    tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`owner/name` is no folder: its tokenizer lies in the hub's cache."""
    monkeypatch.setattr(export, "model_folder", lambda name: {"owner/name": tiny_model_dir}[name])
    (tmp_path / "out").mkdir()
    export.copy_tokenizer(tmp_path / "out", ModelConfig(path="owner/name"))
    (tmp_path / "out" / "config.json").write_text((tiny_model_dir / "config.json").read_text())
    assert AutoTokenizer.from_pretrained(tmp_path / "out").encode("a")
