"""Prefix reuse: what is computed once is not computed again, and the numbers do not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_harness import Harness


def computed_tokens(harness: Harness) -> int:
    """Tokens that went through the model so far."""
    return harness.engine.scheduler.counters.computed_tokens


def test_a_later_turn_computes_only_its_new_tokens(
    harness: Harness, tiny_model_dir: Path, prompts: Callable[..., Any], check_greedy: Callable[..., None]
) -> None:
    [prompt, observation, other] = prompts(3, 40, 40)
    first = harness.generate(prompt, max_new_tokens=10)
    harness.generate(other)
    history = prompt + first["output_ids"] + observation
    before = computed_tokens(harness)
    second = harness.generate(history, max_new_tokens=10)
    # The last sampled token was never fed back, so it is computed now: 40 + 10 - 1 tokens were there.
    assert second["meta_info"]["cached_tokens"] == 49
    assert computed_tokens(harness) - before == 1 + 40 + 9
    check_greedy(tiny_model_dir, history, second)


def test_samples_of_one_prompt_compute_it_once(
    harness: Harness, tiny_model_dir: Path, prompts: Callable[..., Any], check_greedy: Callable[..., None]
) -> None:
    [prompt] = prompts(1, 100, 100)
    requests = [harness.submit(prompt, max_new_tokens=5) for _ in range(8)]
    harness.run()
    assert computed_tokens(harness) == 100 + 7 * 1 + 8 * 4
    assert sorted(r.cached_tokens for r in requests) == [0] + 7 * [99]
    for request in requests:
        check_greedy(tiny_model_dir, prompt, harness.result(request))


def test_a_shared_beginning_is_copied_and_the_original_stays(
    harness: Harness, tiny_model_dir: Path, prompts: Callable[..., Any], check_greedy: Callable[..., None]
) -> None:
    [system, one, two] = prompts(3, 30, 30)
    first = harness.generate(system + one)
    second = harness.generate(system + two)
    assert second["meta_info"]["cached_tokens"] == 30
    again = harness.generate(system + one + first["output_ids"] + [1])
    assert again["meta_info"]["cached_tokens"] == 60 + 12 - 1
    check_greedy(tiny_model_dir, system + two, second)
    check_greedy(tiny_model_dir, system + one + first["output_ids"] + [1], again)


def test_a_running_request_lends_its_prompt(
    harness: Harness, tiny_model_dir: Path, prompts: Callable[..., Any], check_greedy: Callable[..., None]
) -> None:
    [prompt] = prompts(1, 50, 50)
    first = harness.submit(prompt, max_new_tokens=20)
    harness.step(5)
    second = harness.submit([*prompt, 7, 8, 9], max_new_tokens=20)
    harness.run()
    assert second.cached_tokens == 50
    check_greedy(tiny_model_dir, prompt, harness.result(first))
    check_greedy(tiny_model_dir, [*prompt, 7, 8, 9], harness.result(second))


def test_flush_forgets(harness: Harness, prompts: Callable[..., Any]) -> None:
    [prompt] = prompts(1, 50, 50)
    running = harness.submit(prompt, max_new_tokens=20)
    harness.step(3)
    harness.do(harness.engine.flush_cache())
    assert harness.submit(prompt).finish is None
    harness.run()
    # The request that ran during the flush must not leave its old keys behind either.
    assert running.finish is not None
    assert harness.generate([*prompt, 1, 2, 3, 4, 5])["meta_info"]["cached_tokens"] == 50
    harness.do(harness.engine.flush_cache())
    assert harness.generate(prompt)["meta_info"]["cached_tokens"] == 0


def test_the_least_recently_used_slot_goes_first(
    make_harness: Callable[..., Harness], prompts: Callable[..., Any]
) -> None:
    harness = make_harness(max_running_requests=2)
    assert harness.table.max_slots == 3
    a, b, c, d = prompts(4, 30, 30)
    for prompt in (a, b, c):
        harness.generate(prompt)
    assert harness.generate([*a, 1])["meta_info"]["cached_tokens"] == 30
    harness.generate(d)
    assert harness.generate([*a, 1, 2])["meta_info"]["cached_tokens"] == 31
    assert harness.generate([*b, 1])["meta_info"]["cached_tokens"] == 0


def test_memory_starts_small_and_grows(
    make_harness: Callable[..., Harness],
    tiny_model_dir: Path,
    prompts: Callable[..., Any],
    check_greedy: Callable[..., None],
) -> None:
    harness = make_harness()
    assert harness.table.cache.length == 128
    assert harness.table.cache.slots == 8
    [short, long] = prompts(2, 120, 120)
    short = short[:100]
    first = harness.submit(short, max_new_tokens=60)
    harness.step(10)
    second = harness.submit(long * 4, max_new_tokens=60)
    harness.run()
    assert 540 <= harness.table.cache.length <= 2048
    check_greedy(tiny_model_dir, short, harness.result(first))
    check_greedy(tiny_model_dir, long * 4, harness.result(second))
    many = [harness.submit(prompt, max_new_tokens=3) for prompt in prompts(30, 5, 20)]
    harness.step()
    assert len(harness.scheduler.running) == 30
    harness.run()
    assert harness.table.cache.slots > 8
    assert all(request.finish is not None for request in many)


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_requests_wait_and_step_back_when_memory_is_short(
    slots: int,
    make_harness: Callable[..., Harness],
    tiny_model_dir: Path,
    prompts: Callable[..., Any],
    check_greedy: Callable[..., None],
) -> None:
    probe = make_harness()
    budget = slots * 256 * probe.table.cache.bytes_per_token
    harness = make_harness(kv_cache_gb=budget / 1e9)
    batch = prompts(6, 60, 100)
    requests = [harness.submit(prompt, max_new_tokens=100) for prompt in batch]
    harness.run()
    assert harness.table.cache.length == 256
    assert harness.table.cache.slots <= slots
    for prompt, request in zip(batch, requests, strict=True):
        check_greedy(tiny_model_dir, prompt, harness.result(request))
        assert len(request.ids) == 100


def test_slots_move_together_when_few_are_left(
    make_harness: Callable[..., Harness],
    tiny_model_dir: Path,
    prompts: Callable[..., Any],
    check_greedy: Callable[..., None],
) -> None:
    harness = make_harness(native=False)
    batch = prompts(30, 10, 40)
    requests = [harness.submit(prompt, max_new_tokens=60 if i >= 27 else 3) for i, prompt in enumerate(batch)]
    harness.step(5)
    assert len(harness.scheduler.running) == 3
    harness.step()
    assert harness.table.active.max() < 8
    harness.run()
    for prompt, request in zip(batch, requests, strict=True):
        check_greedy(tiny_model_dir, prompt, harness.result(request))
    # What was moved is still known as prefix cache.
    for prompt, request in zip(batch, requests, strict=True):
        assert harness.generate(prompt + request.ids + [1])["meta_info"]["cached_tokens"] == request.total - 1


def test_sampling_parameters_move_with_their_slots(
    make_harness: Callable[..., Harness], prompts: Callable[..., Any]
) -> None:
    [prompt] = prompts(1, 20, 20)
    params = {"temperature": 1.3, "top_k": 30, "sampling_seed": 11, "max_new_tokens": 25}
    alone = make_harness().generate(prompt, **params)["output_ids"]
    harness = make_harness(native=False)
    for other in prompts(20, 5, 30, seed=1):
        harness.submit(other, max_new_tokens=3)
    last = harness.submit(prompt, **params)
    harness.step()
    first_slot = last.slot
    harness.run()
    assert first_slot > 10
    assert harness.result(last)["output_ids"] == alone
