"""What is sampled follows the distribution that the parameters describe, and seeds fix it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_harness import Harness
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import UserInputError
from agentrl.inference.embedded.model_spec import load_spec
from agentrl.inference.embedded.native_ops import best_ops
from agentrl.inference.embedded.ops import TorchOps
from agentrl.inference.embedded.request import GenerationRequest
from agentrl.inference.embedded.sampler import RowTable, sample, seed_key, uniforms
from agentrl.inference.embedded.sampling_params import SamplingParams, UnsupportedFeatureError

VOCAB = 40


def draw(logits: torch.Tensor, count: int, ops: TorchOps, **params: Any) -> list[int]:
    """Sample the same row many times."""
    table = RowTable.new(count, logits.shape[0])
    parsed = SamplingParams.parse(params)
    for slot in range(count):
        table.set(slot, GenerationRequest("", [0], parsed, 1, frozenset(), seed_key(slot, 0)))
    slots = np.arange(count)
    ids, _, _ = sample(logits.repeat(count, 1), table, slots, np.zeros(count, np.int64), ops)
    return ids.tolist()


@pytest.fixture(params=["native", "torch"])
def ops(request: pytest.FixtureRequest, tiny_model_dir: Path) -> TorchOps:
    """Both kinds of operations."""
    if request.param == "torch":
        return TorchOps()
    return best_ops(load_spec(tiny_model_dir), torch.float32, torch.device("cpu"))


def truncated(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """The distribution that the parameters describe, written plainly."""
    probs = torch.softmax(logits.double() / temperature, -1)
    order = probs.argsort(descending=True).tolist()
    kept, mass = [], 0.0
    for rank, token in enumerate(order):
        if rank and ((0 < top_k <= rank) or mass >= top_p or probs[token] < min_p * probs[order[0]]):
            break
        kept.append(token)
        mass += float(probs[token])
    out = torch.zeros_like(probs)
    out[kept] = probs[kept]
    return out / out.sum()


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.3},
        {"temperature": 1.5, "top_k": 12, "top_p": 0.8, "min_p": 0.02},
    ],
)
def test_samples_follow_the_distribution(params: dict[str, Any], ops: TorchOps) -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1)) * 2
    wanted = truncated(logits, **{"temperature": 1.0, "top_k": -1, "top_p": 1.0, "min_p": 0.0} | params)
    count = 20_000
    seen = Counter(draw(logits, count, ops, **params))
    support = [i for i in range(VOCAB) if wanted[i] > 0]
    assert set(seen) <= set(support)
    chi_square = sum((seen[i] - count * float(wanted[i])) ** 2 / (count * float(wanted[i])) for i in support)
    freedom = len(support) - 1
    # Six standard deviations above the mean of a chi-square: the draws are hashes of fixed seeds, so this cannot flake.
    assert chi_square < freedom + 6 * math.sqrt(2 * freedom) + 6


def test_wide_vocabularies_are_sorted_only_as_far_as_needed(ops: TorchOps) -> None:
    flat = torch.zeros(20_000)
    assert max(Counter(draw(flat, 600, ops, top_p=0.9)).values()) < 8
    assert len(set(draw(flat, 600, ops, top_k=7))) <= 7
    assert len(set(draw(flat, 600, ops, top_k=6000))) > 450


@settings(deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 2**31), scale=st.floats(0.01, 30), temperature=st.floats(0.05, 5),
    top_k=st.integers(1, 60), top_p=st.floats(0.001, 1.0), min_p=st.floats(0, 1),
)  # fmt: skip
def test_only_allowed_tokens_come_out(
    seed: int, scale: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * scale
    probs = torch.softmax(logits / temperature, -1)
    ids = draw(logits, 50, TorchOps(), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    above = torch.tensor([float(probs[probs > probs[i]].sum()) for i in ids])
    rank = torch.tensor([int((probs > probs[i]).sum()) for i in ids])
    best = probs.max()
    for token, mass, place in zip(ids, above.tolist(), rank.tolist(), strict=True):
        assert place < top_k
        assert mass < top_p + 1e-5
        assert probs[token] >= min_p * best - 1e-6 or place == 0


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20), st.integers(0, 2**40))
def test_uniform_numbers_are_in_range(keys: list[int], place: int) -> None:
    u = uniforms(np.array(keys, np.uint64), np.full(len(keys), place))
    assert u.dtype == np.float32
    assert ((u >= 0) & (u < 1)).all()


def test_uniform_numbers_are_even_over_seeds_and_places() -> None:
    by_place = uniforms(np.full(10_000, seed_key(3, 0), np.uint64), np.arange(10_000))
    by_seed = uniforms(np.array([seed_key(i, 0) for i in range(10_000)], np.uint64), np.zeros(10_000, np.int64))
    for u in (by_place, by_seed):
        counts = np.histogram(u, 20, (0, 1))[0]
        assert ((counts - 500) ** 2 / 500).sum() < 19 + 6 * math.sqrt(38)
        assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.04


def test_n_samples_differ_and_are_repeatable(make_harness: Callable[..., Harness]) -> None:
    outcomes = []
    for _ in range(2):
        harness = make_harness()
        first = harness.submit([1, 2, 3], n=4, sampling_seed=7, temperature=1.0, rid="x")
        harness.run()
        ids = [p.request.ids for p in harness.ended.values()]
        assert first.rid == "x-0"
        assert len(ids) == 4
        assert len({tuple(i) for i in ids}) == 4
        outcomes.append(ids)
    assert outcomes[0] == outcomes[1]


def test_unseeded_requests_differ_but_follow_the_engine_seed(make_harness: Callable[..., Harness]) -> None:
    def answers(seed: int) -> list[list[int]]:
        harness = make_harness(seed=seed)
        return [harness.generate([1, 2, 3], temperature=1.0)["output_ids"] for _ in range(4)]

    one = answers(1)
    assert len({tuple(ids) for ids in one}) == 4
    assert one == answers(1)
    assert one != answers(2)


def test_penalties(harness: Harness, tiny_model_dir: Path, reference: Callable[..., torch.Tensor]) -> None:
    for params in (
        {"repetition_penalty": 1.5},
        {"frequency_penalty": 1.1},
        {"presence_penalty": 2.0},
        {"repetition_penalty": 0.7, "frequency_penalty": -0.5, "presence_penalty": -0.3, "logit_bias": {"9": 4.0}},
    ):
        prompt = [1, 2, 3]
        result = harness.generate(prompt, max_new_tokens=25, **params)
        full = reference(tiny_model_dir, prompt + result["output_ids"])
        entries = result["meta_info"]["output_token_logprobs"]
        for place, token in enumerate(result["output_ids"]):
            logits = full[len(prompt) + place - 1].clone()
            for seen, times in Counter(result["output_ids"][:place]).items():
                factor = params.get("repetition_penalty", 1.0)
                logits[seen] = logits[seen] / factor if logits[seen] > 0 else logits[seen] * factor
                logits[seen] -= times * params.get("frequency_penalty", 0) + params.get("presence_penalty", 0)
            if "logit_bias" in params:
                logits[9] += 4.0
            assert int(logits.argmax()) == token
            assert entries[place][0] == pytest.approx(float(torch.log_softmax(logits, -1)[token]), abs=1e-4)


def test_min_new_tokens_keeps_stop_ids_away(harness: Harness) -> None:
    favourite = {"logit_bias": {"7": 100.0}, "stop_token_ids": [7], "ignore_eos": False}
    assert harness.generate([1, 2, 3], **favourite)["output_ids"] == [7]
    late = harness.generate([1, 2, 3], min_new_tokens=5, **favourite)
    assert len(late["output_ids"]) == 6
    assert 7 not in late["output_ids"][:5]
    assert late["meta_info"]["finish_reason"] == {"type": "stop", "matched": 7}


def test_the_models_own_stop_id_and_ignore_eos(harness: Harness) -> None:
    eos = harness.engine.spec.eos_token_ids[0]
    bias = {"logit_bias": {str(eos): 100.0}}
    stopped = harness.generate([1, 2], ignore_eos=False, **bias)
    assert stopped["output_ids"] == [eos]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": eos}
    assert stopped["text"] == ""
    assert harness.generate([1, 2], ignore_eos=True, **bias)["output_ids"] == [eos] * 12
    both = {**bias, "stop_token_ids": [eos]}
    assert harness.generate([1, 2], ignore_eos=True, **both)["output_ids"] == [eos] * 12, "as SGLang has it"


def test_no_new_tokens(harness: Harness) -> None:
    result = harness.generate([1, 2, 3], max_new_tokens=0, logprob_start_len=0)
    assert result["output_ids"] == []
    assert result["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert len(result["meta_info"]["input_token_logprobs"]) == 3


BAD: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": math.nan}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": 0}, "top_k"),
    ({"top_k": 2.5}, "top_k"),
    ({"min_p": -1}, "min_p"),
    ({"stop": [""]}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": 3}, "stop_token_ids"),
    ({"max_new_tokens": -1}, "max_new_tokens"),
    ({"max_new_tokens": 1.0}, "max_new_tokens"),
    ({"min_new_tokens": 9, "max_new_tokens": 3}, "min_new_tokens"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"n": 0}, "n"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"sampling_seed": 1.5}, "sampling_seed"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"temprature": 1}, "Did you mean 'temperature'?"),
]


@pytest.mark.parametrize(("params", "named"), BAD, ids=[str(params) for params, _ in BAD])
def test_bad_parameters_are_named(params: dict[str, Any], named: str) -> None:
    with pytest.raises(UserInputError, match=named.replace("?", r"\?")):
        SamplingParams.parse(params)


@pytest.mark.parametrize("name", ["json_schema", "regex", "ebnf", "stop_regex", "custom_params"])
def test_what_the_engine_has_not_is_said(name: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=name):
        SamplingParams.parse({name: "x"})
    assert SamplingParams.parse({name: None}) == SamplingParams()
