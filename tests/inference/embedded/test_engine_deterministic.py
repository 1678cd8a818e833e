"""Deterministic mode: bit-equal numbers whoever else is there and whenever a request arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine_harness import Harness


def outcome(result: dict[str, Any]) -> tuple[Any, Any]:
    return result["output_ids"], result["meta_info"]["output_token_logprobs"]


def test_alone_and_in_company(make_harness: Callable[..., Harness], prompts: Callable[..., Any]) -> None:
    batch = prompts(8, 5, 120)
    fields = [{"temperature": 1.0, "sampling_seed": 40 + i, "max_new_tokens": 10 + i} for i in range(8)]
    alone = []
    for prompt, params in zip(batch, fields, strict=True):
        alone.append(outcome(make_harness(deterministic=True).generate(prompt, **params)))
    harness = make_harness(deterministic=True)
    order = [3, 7, 1, 0, 6, 2, 5, 4]
    requests = {}
    for i in order:
        requests[i] = harness.submit(batch[i], **fields[i])
        harness.step(i)
    harness.run()
    assert [outcome(harness.result(requests[i])) for i in range(8)] == alone
    # A second time, with everything that a prefix cache could have kept.
    assert [outcome(harness.generate(p, **f)) for p, f in zip(batch, fields, strict=True)] == alone


def test_nothing_is_reused(make_harness: Callable[..., Harness]) -> None:
    harness = make_harness(deterministic=True)
    prompt = list(range(50))
    harness.generate(prompt)
    assert harness.generate(prompt)["meta_info"]["cached_tokens"] == 0


def test_seeds_decide_where_batching_does_not(harness: Harness, make_harness: Callable[..., Harness]) -> None:
    """Outside of deterministic mode a seed still fixes the draws; only rounding of logits depends on the batch."""
    params = {"temperature": 1.0, "max_new_tokens": 30}
    alone = harness.generate([1, 2, 3], sampling_seed=5, **params)["output_ids"]
    crowd = make_harness()
    requests = [crowd.submit([1, 2, 3], sampling_seed=seed, **params) for seed in (1, 5, 9)]
    crowd.run()
    ids = [crowd.result(request)["output_ids"] for request in requests]
    assert ids[1] == alone
    assert ids[0] != ids[1] != ids[2]
