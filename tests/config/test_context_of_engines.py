"""Requests of a run fit into the context of the engine that it starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from agentrl.config import RunConfig, machine_checks


def problems(folder: Path, response: int, name_of_hub: str | None = None, **rollout: Any) -> list[str]:
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 1024}), encoding="utf-8")
    config = RunConfig.model_validate(
        {
            "data": {"max_prompt_length": 512, "max_response_length": response},
            "actor_rollout_ref": {"model": {"path": name_of_hub or str(folder)}, "rollout": rollout},
            "trainer": {"device": "cpu"},
        }
    )
    return list(machine_checks.check_context(config))


@pytest.mark.parametrize("response", [504, 505, 512])
def test_sglang_needs_eight_tokens_more(tmp_path: Path, response: int) -> None:
    assert not problems(tmp_path, response, name="embedded")
    assert not problems(tmp_path, response, name="vllm", server={"python": "x"})
    assert not problems(tmp_path, response, name="sglang", server={"addresses": ["http://127.0.0.1:1"]})
    said = problems(tmp_path, response, name="sglang")
    if response == 504:
        assert not said
    else:
        (problem,) = said
        assert problem.startswith(f"data.max_response_length: requests of {512 + response} tokens need a context of ")
        assert f"{520 + response} in SGLang" in problem
        assert problem.endswith("has 1024 positions: make them at most 1016")


def test_so_does_the_longest_request_by_key(tmp_path: Path) -> None:
    assert not problems(tmp_path, 100, name="sglang", max_model_len=1016)
    (problem,) = problems(tmp_path, 100, name="sglang", max_model_len=1017)
    assert problem.startswith("actor_rollout_ref.rollout.max_model_len: requests of 1017 tokens")


def test_a_model_of_the_hubs_cache_is_looked_at_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--somebody--short" / "snapshots" / "1"
    folder.mkdir(parents=True)
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text("1")
    (problem,) = problems(folder, 600, "somebody/short", name="embedded")
    assert problem.endswith("need 1112, but the model in somebody/short has 1024 positions")
    assert not problems(folder, 100, "somebody/short", name="embedded")
    assert not problems(folder, 600, "somebody/other", name="embedded")


def test_a_model_that_is_too_short_is_told_once(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, 600, name="sglang")
    assert "need 1112, but the model" in problem
