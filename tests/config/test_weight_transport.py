"""Which transports of weights an engine understands, and what `ipc` needs: engines on the GPUs of the ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from agentrl.config.root import RunConfig
from agentrl.config.weight_transport import check_weight_sync


def problems(name: str, device: str, model: str = "", **rollout: Any) -> list[str]:
    config = RunConfig()
    config.actor_rollout_ref.model.path = model
    config.trainer.device = device  # type: ignore[assignment]
    section = config.actor_rollout_ref.rollout
    section.name, section.weight_sync = name, "ipc"  # type: ignore[assignment]
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
        got = problems("hf", "cpu", str(tmp_path / family))
        assert [says in problem for problem in got] == ([True] if says else [])
        assert problems("embedded", "cpu", str(tmp_path / family)) == []
