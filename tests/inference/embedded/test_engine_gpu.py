"""The embedded engine on a GPU; without one, on a simulated one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_harness import FAMILIES, Harness
from safetensors.torch import load_file, save_file
from simulated_cuda import gpu_or_simulated

from agentrl.inference.embedded.engine import _free_memory
from agentrl.inference.embedded.options import EngineOptions

CPU_ONLY = {"one_head"}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with gpu_or_simulated(monkeypatch):
        yield


def answers(model: Path, prompts: list[list[int]], **options: Any) -> list[tuple[list[int], list[float]]]:
    """Ids and log-probs of greedy answers, computed together; the last prompt continues the first one's answer."""
    harness = Harness(model, **options)
    requests = [harness.submit(prompt, max_new_tokens=6) for prompt in prompts]
    harness.run()
    requests.append(harness.submit([*prompts[0], *harness.result(requests[0])["output_ids"], 5], max_new_tokens=4))
    harness.run()
    assert harness.scheduler.model.device.type == options["device"]
    found = map(harness.result, requests)
    return [(one["output_ids"], [p for p, *_ in one["meta_info"]["output_token_logprobs"]]) for one in found]


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in CPU_ONLY])
def test_answers_equal_those_on_a_cpu(
    family: str, family_dirs: dict[str, Path], prompts: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    batch = prompts(5, 1, 40)
    wanted = answers(family_dirs[family], batch, device="cpu", native=False)
    request.getfixturevalue("gpu")
    found = answers(family_dirs[family], batch, device="cuda", dtype="float32")
    assert [ids for ids, _ in found] == [ids for ids, _ in wanted]
    for (_, given), (_, expected) in zip(found, wanted, strict=True):
        assert given == pytest.approx(expected, abs=1e-3)


def test_what_auto_means(gpu: None, tiny_model_dir: Path, prompts: Callable[..., Any]) -> None:
    harness = Harness(tiny_model_dir, device="auto")
    request = harness.submit(prompts(1, 5, 6)[0], max_new_tokens=3)
    harness.run()
    assert len(harness.result(request)["output_ids"]) == 3
    options = EngineOptions(model=str(tiny_model_dir))
    assert (options.torch_device().type, options.torch_dtype()) == ("cuda", torch.bfloat16)
    assert harness.scheduler.model.dtype == torch.bfloat16


def test_the_cache_takes_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: asked.append(device) or (6 * 2**20, 2**31))
    assert _free_memory(torch.device("cuda", 0)) == 3 * 2**20
    assert asked == [torch.device("cuda", 0)]


def test_weights_are_replaced(gpu: None, tiny_model_dir: Path, tmp_path: Path, prompts: Callable[..., Any]) -> None:
    harness, prompt = Harness(tiny_model_dir, device="cuda", dtype="float32"), prompts(1, 5, 6)[0]
    before = harness.submit(prompt, max_new_tokens=6)
    harness.run()
    changed = {name: value * 1.5 for name, value in load_file(tiny_model_dir / "model.safetensors").items()}
    save_file(changed, tmp_path / "model.safetensors")
    harness.do(harness.engine.update_weights(lambda model: model.load_folder(tmp_path), version="2", flush=True))
    after = harness.submit(prompt, max_new_tokens=6)
    harness.run()
    assert harness.result(after)["meta_info"]["weight_version"] == "2"
    logprobs = [harness.result(each)["meta_info"]["output_token_logprobs"] for each in (before, after)]
    assert logprobs[0] != logprobs[1]
