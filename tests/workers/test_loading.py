"""Model folders that cannot be used end in one readable message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from agentrl.errors import ConfigError
from agentrl.testing.models import build_tiny_model
from agentrl.workers.attention import ULYSSES, VARLEN, register_ulysses, register_varlen
from agentrl.workers.loading import with_attention


def expect(make_actor: Any, make_config: Any, path: Path, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_actor(make_config(path))


def test_no_folder(tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    expect(make_actor, make_config, tmp_path / "nowhere", "no model folder")


def test_no_path(make_config: Any, make_actor: Any) -> None:
    config = make_config()
    config.actor_rollout_ref.model.path = ""
    with pytest.raises(ConfigError, match=r"model\.path is empty"):
        make_actor(config)


def test_a_folder_without_a_model(tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    expect(make_actor, make_config, tmp_path, r"no config\.json")


def test_a_file(tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    (tmp_path / "file").write_text("x")
    expect(make_actor, make_config, tmp_path / "file", "no model folder")


def test_weights_that_are_missing_are_not_made_up(tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    folder = build_tiny_model(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    expect(make_actor, make_config, folder, r"lacks 1 weights.*model\.norm\.weight")


def test_weights_that_are_damaged(tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    folder = build_tiny_model(tmp_path)
    (folder / "model.safetensors").write_bytes(b"junk" * 100)
    expect(make_actor, make_config, folder, "cannot be loaded")


def test_an_unknown_kind_of_model(tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "abacus"}))
    expect(make_actor, make_config, tmp_path, "cannot be loaded.*abacus")


def test_a_classifier_is_no_language_model(tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    folder = build_tiny_model(tmp_path / "lm", tie_word_embeddings=False)
    AutoModelForSequenceClassification.from_pretrained(folder).save_pretrained(tmp_path / "classifier")
    expect(make_actor, make_config, tmp_path / "classifier", r"lacks 1 weights.*lm_head")


def test_scaled_logits_are_refused(tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    folder = build_tiny_model(tmp_path, "granite", logits_scaling=8.0)
    expect(make_actor, make_config, folder, "changes its logits")


@pytest.mark.parametrize(
    ("attention", "key"), [(ULYSSES, "ulysses_sequence_parallel_size=1"), (VARLEN, "use_remove_padding=false")]
)
def test_attention_that_a_model_would_ignore_is_refused(attention: str, key: str) -> None:
    """Falcon keeps its own: ranks would attend within their own part of a row."""
    register_ulysses()
    register_varlen()
    tiny = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    for family in ("falcon", "bloom"):
        net = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **tiny))
        with pytest.raises(ConfigError, match=f"{family}.* code of its own.*{key}"):
            with_attention(net, attention)
    nested = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **tiny, intermediate_size=8))
    assert with_attention(nested, attention).config._attn_implementation == attention
    nested.model.inner = net
    with pytest.raises(ConfigError, match=f"bloom.* code of its own.*{key}"):
        with_attention(nested, attention)


@pytest.mark.parametrize("attention", [ULYSSES, VARLEN])
def test_a_model_that_keeps_the_runs_to_itself_is_refused(attention: str) -> None:
    """StableLM does not pass the arguments of its forward pass to its attention."""
    register_ulysses()
    register_varlen()
    tiny = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model("stablelm", **tiny, intermediate_size=8, pad_token_id=0)
    net = with_attention(AutoModelForCausalLM.from_config(config), attention)
    ids = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(ConfigError, match="StableLmAttention is not told which tokens belong together"):
        net(input_ids=ids, position_ids=torch.arange(4)[None], cu_seq_lens_q=torch.tensor([0, 4]), max_length_q=4)
