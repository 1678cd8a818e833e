"""The cached warm start: reused for the same content, made again for any other, never taken half-made."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from agentrl.cli.demo import warm_start
from agentrl.cli.demo.calculator import CALCULATOR
from agentrl.cli.demo.demos import DEMOS
from agentrl.cli.demo.warm_start import KEY_FILE, prepare_if_missing, prepare_warm_start, refuse_if_missing
from agentrl.config import load, load_config
from agentrl.config.sft import SFT_CHECKS, SFTConfig
from agentrl.errors import CheckpointError, ConfigError, UserInputError
from agentrl.workers import sft

SMALL = {"steps": 2, "train_rows": 60, "held_out_rows": 10}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    assert not prepare_warm_start(folder, [], **SMALL).reused
    return folder


def test_the_model_is_small_and_loads(folder):
    model = AutoModelForCausalLM.from_pretrained(folder / "warm_start" / "huggingface")
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_500_000
    assert model.config.model_type == "qwen2"


def test_the_same_content_is_found_again(folder):
    weights = folder / "warm_start" / "huggingface" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    again = prepare_warm_start(folder, [], **SMALL)
    assert again.reused
    assert again.model == weights.parent
    assert weights.stat().st_mtime_ns == before


@pytest.mark.parametrize("change", [{"steps": 3}, {"train_rows": 61}, {"fresh": True}])
def test_other_content_is_made_again(folder, change):
    assert not prepare_warm_start(folder, [], **{**SMALL, **change}).reused
    assert not prepare_warm_start(folder, [], **{**SMALL, "fresh": True}).reused  # back to what the other tests expect


def test_a_lost_model_or_a_damaged_key_is_made_again(folder):
    (folder / "warm_start" / "huggingface" / "model.safetensors").unlink()
    assert not prepare_warm_start(folder, [], **SMALL).reused
    (folder / "warm_start" / KEY_FILE).write_text("{")
    assert not prepare_warm_start(folder, [], **SMALL).reused


def test_a_warm_start_that_fails_leaves_no_key(folder, monkeypatch):
    def fail(*_args):
        raise CheckpointError("No space left on device")

    monkeypatch.setattr(sft, "write_hf_folder", fail)
    with pytest.raises(CheckpointError):
        prepare_warm_start(folder, [], **{**SMALL, "fresh": True})
    assert not (folder / "warm_start" / KEY_FILE).exists()
    monkeypatch.undo()
    assert not prepare_warm_start(folder, [], **SMALL).reused


def test_a_gsm8k_file_that_is_missing_is_said(tmp_path):
    with pytest.raises(UserInputError, match=r"none\.jsonl"):
        prepare_warm_start(tmp_path, [], from_gsm8k=tmp_path / "none.jsonl")


def test_the_recipe_is_the_one_in_configs(tmp_path):
    config = warm_start._recipe(CALCULATOR, tmp_path, None)
    assert config.optim.name == "muon"
    assert config.trainer.total_training_steps == 700
    assert config.data.tool_config_path is not None


def test_training_the_recipe_alone_makes_the_warm_start_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = []
    monkeypatch.setattr(warm_start, "prepare_warm_start", lambda folder, trackers, demo: made.append(folder))
    recipe = load_config("demo")
    prepare_if_missing(recipe)
    assert made == [Path("outputs/demo")]
    prepare_if_missing(load_config("demo", [f"actor_rollout_ref.model.path={tmp_path / 'mine'}"]))
    Path(recipe.actor_rollout_ref.model.path).mkdir(parents=True)
    prepare_if_missing(recipe)
    assert len(made) == 1


def test_a_dry_run_says_how_to_make_the_warm_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = load_config("demo")
    with pytest.raises(ConfigError, match="agentrl demo --prepare"):
        refuse_if_missing(recipe)
    Path(recipe.actor_rollout_ref.model.path).mkdir(parents=True)
    refuse_if_missing(recipe)


@pytest.mark.parametrize("demo", DEMOS.values(), ids=list(DEMOS))
def test_the_recipes_name_what_prepare_writes(demo):
    recipe, out = load_config(demo.recipe), demo.folder
    assert recipe.data.train_files == str(out / "data" / "train.parquet")
    assert recipe.data.val_files == str(out / "data" / "test.parquet")
    assert recipe.actor_rollout_ref.model.path == str(demo.model)
    supervised = load(demo.warm_start, [], SFTConfig, SFT_CHECKS)
    assert supervised.data.train_files == str(out / "data" / "demonstrations.parquet")
    assert supervised.model.path == str(out / "untrained")
    assert supervised.trainer.default_local_dir == str(out / "warm_start")
