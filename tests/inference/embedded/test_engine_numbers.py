"""Ids and log-probs against transformers, whatever shares the batch and however the prompt gets in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_harness import FAMILIES, Harness
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_concurrent_greedy_equals_a_plain_forward_pass(
    native: bool,
    family: str,
    family_dirs: dict[str, Path],
    prompts: Callable[..., Any],
    check_greedy: Callable[..., None],
) -> None:
    folder = family_dirs[family]
    harness = Harness(folder, native=native)
    batch = prompts(20, 1, 150)
    requests = [harness.submit(prompt, max_new_tokens=5 + i) for i, prompt in enumerate(batch)]
    harness.run()
    for i, (prompt, request) in enumerate(zip(batch, requests, strict=True)):
        result = harness.result(request)
        assert len(result["output_ids"]) == 5 + i
        check_greedy(folder, prompt, result)


def test_greedy_equals_generate(harness: Harness, tiny_model_dir: Path, prompts: Callable[..., Any]) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    for prompt in prompts(3, 5, 40):
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=40,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert harness.generate(prompt, max_new_tokens=40)["output_ids"] == out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_log_probs_are_those_of_the_scaled_logits(
    temperature: float,
    harness: Harness,
    tiny_model_dir: Path,
    prompts: Callable[..., Any],
    reference: Callable[..., Any],
) -> None:
    for truncation in ({}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}):
        [prompt] = prompts(1, 20, 20)
        result = harness.generate(prompt, temperature=temperature, **truncation)
        ids = result["output_ids"]
        logits = reference(tiny_model_dir, prompt + ids)[len(prompt) - 1 : -1] / temperature
        wanted = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids)[:, None]).squeeze(1)
        got = torch.tensor([entry[0] for entry in result["meta_info"]["output_token_logprobs"]])
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)


def test_a_request_joins_while_others_run(
    harness: Harness, tiny_model_dir: Path, prompts: Callable[..., Any], check_greedy: Callable[..., None]
) -> None:
    batch = prompts(6, 3, 80)
    requests = []
    for prompt in batch:
        requests.append(harness.submit(prompt, max_new_tokens=20))
        harness.step(3)
    assert len(harness.scheduler.running) == 6, "all of them must run together"
    harness.run()
    for prompt, request in zip(batch, requests, strict=True):
        check_greedy(tiny_model_dir, prompt, harness.result(request))


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked_prefill(
    chunk: int,
    make_harness: Callable[..., Harness],
    tiny_model_dir: Path,
    prompts: Callable[..., Any],
    check_greedy: Callable[..., None],
) -> None:
    harness = make_harness(prefill_chunk=chunk)
    batch = prompts(5, 2, 90)
    requests = [harness.submit(prompt) for prompt in batch]
    harness.step()
    assert sum(harness.table.computed) <= chunk + len(batch)
    harness.run()
    for prompt, request in zip(batch, requests, strict=True):
        check_greedy(tiny_model_dir, prompt, harness.result(request))


def test_decoding_goes_on_while_a_long_prompt_comes_in(make_harness: Callable[..., Harness]) -> None:
    harness = make_harness(prefill_chunk=8)
    first = harness.submit([1, 2, 3], max_new_tokens=40)
    harness.step(2)
    harness.submit(list(range(200)), max_new_tokens=1)
    before = len(first.ids)
    harness.step(10)
    assert len(first.ids) == before + 10


def test_prompt_log_probs(
    harness: Harness, tiny_model_dir: Path, prompts: Callable[..., Any], reference: Callable[..., Any]
) -> None:
    [prompt] = prompts(1, 30, 30)
    log_probs = torch.log_softmax(reference(tiny_model_dir, prompt), -1)
    for start in (0, 1, 10, 29):
        harness.submit(prompt, max_new_tokens=3)  # leaves a prefix behind that must not hide prompt tokens
        harness.run()
        entries = harness.generate(prompt, max_new_tokens=2, logprob_start_len=start)["meta_info"][
            "input_token_logprobs"
        ]
        assert [entry[1] for entry in entries] == prompt[start:]
        if start == 0:
            assert entries[0][0] is None
        got = [entry[0] for entry in entries if entry[0] is not None]
        first = max(start, 1)
        wanted = [float(log_probs[place - 1, prompt[place]]) for place in range(first, len(prompt))]
        assert got == pytest.approx(wanted, abs=1e-4)


def test_top_log_probs(harness: Harness, tiny_model_dir: Path, reference: Callable[..., Any]) -> None:
    result = harness.generate([5, 6, 7], max_new_tokens=4, top_logprobs_num=3)
    log_probs = torch.log_softmax(reference(tiny_model_dir, [5, 6, 7, *result["output_ids"]])[2:-1], -1)
    values, ids = log_probs.topk(3)
    tops = result["meta_info"]["output_top_logprobs"]
    assert [[entry[1] for entry in top] for top in tops] == ids.tolist()
    assert [entry[0] for top in tops for entry in top] == pytest.approx(values.flatten().tolist(), abs=1e-4)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_order_of_turns_and_joins_gives_the_same_numbers(
    data: st.DataObject, tiny_model_dir: Path, check_greedy: Callable[..., None]
) -> None:
    """Random conversations over few slots and little memory: reuse, eviction, copies, growth and retraction happen."""
    running = data.draw(st.integers(1, 5), "max_running_requests")
    harness = Harness(
        tiny_model_dir,
        max_running_requests=running,
        native=data.draw(st.booleans(), "native"),
        prefill_chunk=data.draw(st.sampled_from([5, 32, 2048]), "prefill_chunk"),
        kv_cache_gb=data.draw(st.sampled_from([1e-9, 6e-4, 1.0]), "kv_cache_gb"),
    )
    histories: list[list[int]] = [
        [1, 2, 3, 4, 5, 6, 7, 8] for _ in range(data.draw(st.integers(1, 6), "conversations"))
    ]
    live: dict[int, tuple[Any, list[int]]] = {}
    for _ in range(data.draw(st.integers(3, 12), "events")):
        who = data.draw(st.integers(0, len(histories) - 1))
        if who not in live:
            observation = data.draw(st.lists(st.integers(0, 255), min_size=1, max_size=70))
            histories[who] = histories[who] + observation
            request = harness.submit(histories[who], max_new_tokens=data.draw(st.integers(1, 30)))
            live[who] = (request, histories[who])
        harness.step(data.draw(st.integers(0, 8)))
        for who, (request, prompt) in list(live.items()):
            if request.finish is not None:
                check_greedy(tiny_model_dir, prompt, harness.result(request))
                histories[who] = prompt + request.ids
                del live[who]
    harness.run()
    for request, prompt in live.values():
        check_greedy(tiny_model_dir, prompt, harness.result(request))
    assert not harness.scheduler.running
    assert all(owner is None for owner in harness.table.owners)
