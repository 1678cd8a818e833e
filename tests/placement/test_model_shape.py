"""Sizes of models against what they really have, and against what is published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.placement.durations import pass_operations
from agentrl.placement.memory import activations, passing
from agentrl.placement.model_shape import PUBLISHED, ModelShape, find_shape, published
from agentrl.testing.models import build_tiny_model
from agentrl.workers.flops import FlopCounter

FAMILIES = {
    "qwen2": {},
    "qwen3": {},
    "llama": {"tie_word_embeddings": False},
    "qwen3_moe": {"mlp_only_layers": [1]},
}


def whole(shape: ModelShape) -> torch.nn.Module:
    """An empty model of these sizes."""
    sizes = PUBLISHED[shape.source.split()[3]]
    config = AutoConfig.for_model(**{key: value for key, value in sizes.items() if value is not None})
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_make_the_model_that_its_name_says(name: str) -> None:
    shape = published(f"somebody/{name}-Instruct")
    assert shape is not None
    assert shape.parameters == sum(parameter.numel() for parameter in whole(shape).parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_is_read_like_the_model_in_it(family: str, tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / family, family, **FAMILIES[family])
    shape, lm = find_shape(str(folder)), AutoModelForCausalLM.from_pretrained(folder)
    assert shape is not None
    assert shape.parameters == sum(parameter.numel() for parameter in lm.parameters())
    assert shape.source == f"config.json of {folder}"
    if not shape.num_experts:  # FlopCounter is for dense models
        counted = FlopCounter(lm)(torch.tensor([100] * 7))
        assert pass_operations(shape, 700, 100, 6) == pytest.approx(counted, rel=0.01)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_activations_are_what_autograd_keeps(family: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3, "head_dim": 16}
    lm = AutoModelForCausalLM.from_pretrained(build_tiny_model(tmp_path / family, family, **sizes))
    shape = find_shape(str(tmp_path / family))
    assert shape is not None
    kept: dict[int, int] = {}
    parameters = {parameter.untyped_storage().data_ptr() for parameter in lm.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.randint(0, 200, (2, 128))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = lm.model(input_ids=ids, use_cache=False).last_hidden_state
    assert hidden.requires_grad
    measured = sum(kept.values())
    expected = activations(shape, 256, 4, checkpointing=False) - 256 * passing(shape, 4)
    assert expected == pytest.approx(measured, rel=0.1)


def test_who_is_not_known(tmp_path: Path) -> None:
    assert find_shape("somebody/unheard-of") is None
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8}))
    assert find_shape(str(tmp_path)) is None
    for text in ("[]", "7", '"qwen2"', "{"):
        (tmp_path / "config.json").write_text(text)
        assert find_shape(str(tmp_path)) is None
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "num_attention_heads": 0}))
    assert find_shape(str(tmp_path)) is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", **sizes}))
    shape = find_shape(str(tmp_path))
    assert shape is not None
    assert not shape.exact
    assert str(shape).startswith("about ")


def test_the_cache_of_the_hub_counts_more_than_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cache(tmp_path, monkeypatch, "Qwen/Qwen2.5-7B", {**PUBLISHED["qwen2.5-7b"], "num_hidden_layers": 2})
    shape = find_shape("Qwen/Qwen2.5-7B")
    assert shape is not None
    assert (shape.layers, shape.source) == (2, "config.json of the hub's cache (Qwen/Qwen2.5-7B)")


def fake_cache(cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, config: dict[str, object]) -> Path:
    """A hub's cache with one model, without its weights."""
    from huggingface_hub import constants

    place = cache / f"models--{name.replace('/', '--')}"
    folder = place / "snapshots" / "1"
    folder.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("1")
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return folder
