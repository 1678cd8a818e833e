"""Model folders that cannot be used end in one readable message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from agentrl.errors import ConfigError
from agentrl.testing.models import build_tiny_model


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
