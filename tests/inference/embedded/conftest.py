"""Engines to step by hand, and a reference by transformers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_harness import FAMILIES, Harness
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentrl.testing.models import build_tiny_model


@pytest.fixture(scope="session")
def family_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model per family and variant."""
    root = tmp_path_factory.mktemp("families")
    kinds = {"llama3_rope": "llama", "linear_rope": "qwen2", "one_head": "llama"}
    return {
        name: build_tiny_model(root / name, kinds.get(name, name), seed=3, **overrides)
        for name, overrides in FAMILIES.items()
    }


@pytest.fixture(scope="session")
def reference(tiny_model_dir: Path) -> Callable[..., torch.Tensor]:
    """`reference(folder, ids)`: float32 logits of a plain forward pass, `(len(ids), vocab)`."""
    loaded: dict[Path, PreTrainedModel] = {}

    def logits(folder: Path, ids: list[int]) -> torch.Tensor:
        if folder not in loaded:
            loaded[folder] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.inference_mode():
            return loaded[folder](torch.tensor([ids])).logits[0]

    return logits


@pytest.fixture
def harness(tiny_model_dir: Path) -> Harness:
    """An engine over the tiny Qwen2."""
    return Harness(tiny_model_dir)


@pytest.fixture
def make_harness(tiny_model_dir: Path) -> Callable[..., Harness]:
    """`make_harness(model=None, **options)`."""

    def make(model: Path | None = None, **options: Any) -> Harness:
        return Harness(model or tiny_model_dir, **options)

    return make


@pytest.fixture
def check_greedy(reference: Callable[..., torch.Tensor]) -> Callable[..., None]:
    """`check_greedy(folder, prompt, result)`: ids and log-probs (to 1e-4) of a plain forward pass."""

    def check(folder: Path, prompt: list[int], result: dict[str, Any]) -> None:
        ids = result["output_ids"]
        log_probs = torch.log_softmax(reference(folder, prompt + ids)[len(prompt) - 1 : -1], dim=-1)
        assert log_probs.argmax(dim=-1).tolist() == ids
        got = [entry[0] for entry in result["meta_info"]["output_token_logprobs"]]
        wanted = log_probs.gather(1, torch.tensor(ids)[:, None]).squeeze(1)
        torch.testing.assert_close(torch.tensor(got), wanted, atol=1e-4, rtol=0)

    return check


@pytest.fixture
def prompts() -> Callable[..., list[list[int]]]:
    """`prompts(count, low, high)`: random prompts of ragged lengths."""

    def make(count: int, low: int = 1, high: int = 60, seed: int = 0) -> list[list[int]]:
        rnd = random.Random(seed)
        return [[rnd.randrange(256) for _ in range(rnd.randint(low, high))] for _ in range(count)]

    return make


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
