"""Which transports of weights an engine understands, and whose GPUs `ipc` and `distributed` need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from agentrl.config import load_config
from agentrl.config.planned import planning_for
from agentrl.config.root import RunConfig
from agentrl.config.weight_transport import check_weight_sync, shares_gpus, weight_transport

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FILES = ["data.train_files=a.parquet", "data.val_files=a.parquet", "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B"]
RECIPES = [path for path in sorted([*CONFIGS.glob("*.yaml"), *CONFIGS.glob("gpu/*_*.yaml")]) if "sft" not in path.name]


def problems(name: str, device: str, way: str = "ipc", model: str = "", **rollout: Any) -> list[str]:
    config = RunConfig()
    config.actor_rollout_ref.model.path = model
    config.trainer.device = device  # type: ignore[assignment]
    section = config.actor_rollout_ref.rollout
    section.name, section.weight_sync = name, way  # type: ignore[assignment]
    section.server.addresses = rollout.pop("addresses", None)
    for key, value in rollout.items():
        setattr(section, key, value)
    return list(check_weight_sync(config))


@pytest.mark.parametrize("name", ["embedded", "hf", "sglang"])
def test_ipc_wants_the_ranks_own_gpus(name: str) -> None:
    assert problems(name, "cuda") == problems(name, "cuda", placement="colocated") == []
    (split,) = problems(name, "cuda", placement="split")
    assert "engines have GPUs of their own" in split
    (given,) = problems(name, "cuda", addresses=["http://a:1"])
    assert "servers given by address may have other GPUs" in given


def test_on_a_cpu_only_agentrls_own_engines_share_memory() -> None:
    assert problems("embedded", "cpu") == problems("hf", "cpu", addresses=["http://a:1"]) == []
    (dies,) = problems("sglang", "cpu")
    assert "ends an SGLang server on a CPU" in dies


def test_the_engine_hf_takes_weights_in_pieces_unless_transformers_computes_with_them(tmp_path: Path) -> None:
    """`sarvam_moe` has one `query_key_value` in its checkpoint and three weights in the model."""
    for family, says in (("qwen3_moe", None), ("mixtral", None), ("sarvam_moe", "weights of 'sarvam_moe'")):
        AutoConfig.for_model(family).save_pretrained(tmp_path / family)
        got = problems("hf", "cpu", model=str(tmp_path / family))
        assert [says in problem for problem in got] == ([True] if says else [])
        assert problems("embedded", "cpu", model=str(tmp_path / family)) == []


@pytest.mark.parametrize("name", ["embedded", "hf", "sglang"])
def test_a_group_wants_gpus_of_the_engines_own(name: str) -> None:
    for shared in ({}, {"placement": "colocated"}, {"placement": "colocated", "n_gpus": 2}):
        (twice,) = problems(name, "cuda", "distributed", **shared)
        assert "NCCL refuses a group with one GPU twice" in twice
        assert "use ipc or disk" in twice
    apart: list[dict[str, Any]] = [{"placement": "split"}, {"n_gpus": 1}, {"addresses": ["http://a:1"]}]
    assert [problems(name, "cuda", "distributed", **each) for each in apart] == [[], [], []]
    assert problems(name, "cpu", "distributed") == []


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_no_recipe_comes_to_a_transport_that_its_gpus_refuse(recipe: Path) -> None:
    with planning_for(gpus=True):
        config = load_config(recipe, ["trainer.device=cuda", *FILES])
        way = weight_transport(config)
        assert way != "distributed" or not shares_gpus(config)
        config.actor_rollout_ref.rollout.weight_sync = way
        assert list(check_weight_sync(config)) == []
