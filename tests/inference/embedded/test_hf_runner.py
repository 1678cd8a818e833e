"""The runner `hf`: requests that share, leave and enter batches of `generate`; models that only transformers knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_harness import Harness
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.errors import UserInputError
from agentrl.inference.embedded.model_spec import load_spec
from agentrl.inference.embedded.request import GenerationRequest
from agentrl.testing.models import build_tiny_model, byte_tokenizer

HOT = {"temperature": 1.0, "max_new_tokens": 12}


@pytest.fixture
def hf(make_harness: Callable[..., Harness]) -> Harness:
    return make_harness(runner="hf")


def build_other_family(folder: Path, family: str, seed: int = 0, **fields: Any) -> Path:
    """A tiny model of a family that the embedded engine's decoder does not know."""
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    limits = {"vocab_size": len(byte_tokenizer()), "max_position_embeddings": 256, "bos_token_id": None}
    config = AutoConfig.for_model(family, **shape, **limits, num_key_value_heads=2, eos_token_id=258, **fields)
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


OTHERS: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8, "pad_token_id": 0},
    "qwen3_moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}


@pytest.mark.parametrize("family", OTHERS)
def test_models_of_other_families(
    family: str, tmp_path: Path, make_harness: Callable[..., Harness], check_greedy: Callable[..., None]
) -> None:
    one, two = (build_other_family(tmp_path / str(seed), family, seed, **OTHERS[family]) for seed in (0, 1))
    with pytest.raises(UserInputError, match="does not support model_type"):
        load_spec(one)
    harness = make_harness(one, runner="hf")
    prompts = [[1, 2, 3], list(range(40))]
    requests = [harness.submit(prompt) for prompt in prompts]
    harness.run()
    for prompt, request in zip(prompts, requests, strict=True):
        check_greedy(one, prompt, harness.result(request))
    harness.do(harness.engine.update_weights(lambda model: model.load_folder(two), version="1", flush=True))
    result = harness.generate(prompts[1])
    check_greedy(two, prompts[1], result)
    assert result["meta_info"]["weight_version"] == "1"


SHAPES: dict[str, dict[str, Any]] = {
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},  # no attention heads
    "rwkv": {"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gemma4_text": {  # heads of two widths
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "global_head_dim": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 300,
        "num_kv_shared_layers": 0,
    },
}


@pytest.mark.parametrize(("family", "elements"), [("mamba", 64), ("rwkv", 64), ("gpt2", 64), ("gemma4_text", 24)])
def test_rows_of_any_kind_of_model_do_not_depend_on_their_batch(
    family: str, elements: int, tmp_path: Path, make_harness: Callable[..., Harness]
) -> None:
    """RWKV reads padding: its rows of other lengths wait for another batch."""
    fields = {"vocab_size": len(byte_tokenizer()), "bos_token_id": 1, "eos_token_id": 258, "pad_token_id": 0}
    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SHAPES[family], **fields))
    for parameter in lm.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    lm.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    harness = make_harness(tmp_path, runner="hf", max_context_length=32)
    assert harness.scheduler.model.cache_bytes() == 2 * elements * 4
    prompts = [[5, 6, 7], [9, 11, 12, 8, 13, 14], [3, 4, 5]]
    requests = [harness.submit(prompt, ignore_eos=True, max_new_tokens=4) for prompt in prompts]
    harness.run()
    for prompt, request in zip(prompts, requests, strict=True):
        alone = make_harness(tmp_path, runner="hf", max_context_length=32)
        assert alone.generate(prompt, ignore_eos=True, max_new_tokens=4)["output_ids"] == request.ids


def test_a_batch_is_left_when_as_many_wait(hf: Harness, make_harness: Callable[..., Harness]) -> None:
    """What a request samples does not depend on the batches it goes through."""
    alone = make_harness(runner="hf")
    wanted = [alone.generate([5, number], **HOT, sampling_seed=number)["output_ids"] for number in range(3)]
    first = hf.submit([5, 0], **HOT, sampling_seed=0)
    later: list[GenerationRequest] = []

    def arrive(_: list[Any]) -> None:
        if len(first.ids) == 3 and not later:
            hf.engine.scheduler.waiting.append(later_request)
            later.append(later_request)

    later_request = hf.submit([5, 1], **HOT, sampling_seed=1)
    hf.scheduler.waiting.remove(later_request)
    hf.engine.listener = lambda heard: (hf._hear(heard), arrive(heard))
    first.stream = True
    hf.engine.step()
    assert first.finish is None, "the first batch was left"
    assert len(first.ids) == 3
    hf.run()
    assert [first.ids, later_request.ids] == wanted[:2]
    assert hf.generate([5, 2], **HOT, sampling_seed=2)["output_ids"] == wanted[2]


@pytest.mark.parametrize("mode", ["retract", "abort"])
def test_a_batch_is_left_when_a_pause_takes_its_requests(mode: str, hf: Harness) -> None:
    """They wait at once, in their order; then weights are replaced and memory is released while the pause lasts."""
    wanted = [hf.generate([5, number], **HOT, sampling_seed=number)["output_ids"] for number in range(3)]
    requests = [hf.submit([5, number], **HOT, sampling_seed=number) for number in range(3)]
    requests[0].stream = True
    running: list[int] = []

    def pause(_: list[Any]) -> None:
        if len(requests[0].ids) == 3 and not running:
            running.append(len(hf.scheduler.running))
            hf.engine.pause(mode)
            hf.engine.call(lambda: running.append(len(hf.scheduler.running)))

    hf.engine.listener = lambda heard: (hf._hear(heard), pause(heard))
    hf.engine.step()
    assert running == [3, 0]
    assert [len(request.ids) for request in requests] == [3, 3, 3]
    assert list(hf.scheduler.waiting) == (requests if mode == "retract" else [])
    hf.do(hf.engine.call(lambda: hf.engine.occupation.release(["weights"], paused=True)))
    hf.do(hf.engine.call(lambda: hf.engine.occupation.resume(["weights"])))
    hf.do(hf.engine.resume())
    hf.run()
    ids = [request.ids for request in requests]
    assert ids == (wanted if mode == "retract" else [each[:3] for each in wanted])


def test_batches_keep_to_rows_and_memory(make_harness: Callable[..., Harness]) -> None:
    harness = make_harness(runner="hf", max_running_requests=3)
    sizes: list[int] = []
    generate = harness.scheduler._generate
    harness.scheduler._generate = lambda rows, full: (sizes.append(len(rows)), generate(rows, full=full))
    for number in range(7):
        harness.submit([number], max_new_tokens=2)
    harness.run()
    assert max(sizes) == 3
    sizes.clear()
    harness.scheduler.max_tokens = 2 * 12
    for number in range(4):
        harness.submit([number, 1], max_new_tokens=10)
    harness.run()
    assert max(sizes) == 2
    harness.scheduler.max_tokens = 1
    assert len(harness.generate([1], max_new_tokens=3)["output_ids"]) == 3, "one request always runs"


def test_the_models_own_sampling_settings_do_not_count(tmp_path: Path, make_harness: Callable[..., Harness]) -> None:
    folder = build_tiny_model(tmp_path / "model")
    plain = make_harness(folder, runner="hf").generate([1, 2], **HOT, sampling_seed=1)
    (folder / "generation_config.json").write_text('{"repetition_penalty": 5.0, "temperature": 0.1, "do_sample": true}')
    assert make_harness(folder, runner="hf").generate([1, 2], **HOT, sampling_seed=1) | {"meta_info": 0} == plain | {
        "meta_info": 0
    }


def test_bad_weights_leave_the_old_ones(hf: Harness, tmp_path: Path, tiny_model_dir: Path) -> None:
    before = hf.generate([1, 2])["output_ids"]
    deeper = build_tiny_model(tmp_path / "deeper", num_hidden_layers=3)
    shallow = build_tiny_model(tmp_path / "shallow", num_hidden_layers=1)
    wide = build_tiny_model(tmp_path / "wide", intermediate_size=96)
    for folder, says in (
        (tmp_path, "no model"),
        (deeper, "weights are not of the model"),
        (shallow, "weights are missing"),
        (wide, "cannot be loaded"),
    ):
        with pytest.raises(UserInputError, match=says):
            hf.do(
                hf.engine.update_weights(
                    lambda model, folder=folder: model.load_folder(folder), version="1", flush=True
                )
            )
    tensors = load_file(tiny_model_dir / "model.safetensors")
    wrong = {**tensors, "model.norm.wait": tensors["model.norm.weight"]}
    with pytest.raises(UserInputError, match=r"Did you mean 'model\.norm\.weight'"):
        hf.do(hf.engine.update_weights(lambda model: model.load_tensors(wrong), version="1", flush=True))
    assert hf.engine.weight_version == "0"
    assert hf.generate([1, 2])["output_ids"] == before
