"""Stop strings and growing text: the ids run through the whole string, only the text is trimmed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_harness import Harness
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentrl.inference.embedded.text import GrowingText, TextTail, Tokenizer
from agentrl.testing.models import byte_tokenizer

BYTES = byte_tokenizer()


def decode(ids: list[int], skip_special_tokens: bool = True) -> str:
    return str(BYTES.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))


def forced(tokenizer: PreTrainedTokenizerFast, harness: Harness, text: str, **params: Any) -> dict[str, Any]:
    """Make the model say a text (one byte per token) by a bias that follows it."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    request = harness.submit([1, 2, 3], max_new_tokens=len(ids), **params)
    plan = iter(ids)
    while request.finish is None:
        object.__setattr__(request.params, "logit_bias", ((next(plan), 1000.0),))
        harness.step()
    return harness.result(request)


def test_a_tokenizer_from_another_folder(
    make_harness: Callable[..., Harness], tokenizer: PreTrainedTokenizerFast, tiny_model_dir: Path, tmp_path: Path
) -> None:
    model, other = tmp_path / "model", tmp_path / "tokenizer"
    shutil.copytree(tiny_model_dir, model, ignore=shutil.ignore_patterns("tokenizer*", "chat_template*"))
    tokenizer.save_pretrained(other)
    harness = make_harness(model, tokenizer_path=str(other))
    assert forced(tokenizer, harness, "say stop now", stop=["stop"])["text"] == "say "


def test_ids_run_through_the_stop_string(harness: Harness, tokenizer: PreTrainedTokenizerFast) -> None:
    result = forced(tokenizer, harness, "say </answer> and more", stop=["</answer>", "never"])
    assert decode(result["output_ids"]) == "say </answer>"
    assert result["text"] == "say "
    assert result["meta_info"]["finish_reason"] == {"type": "stop", "matched": "</answer>"}
    assert len(result["meta_info"]["output_token_logprobs"]) == len(result["output_ids"])


def test_no_stop_trim_keeps_the_string(harness: Harness, tokenizer: PreTrainedTokenizerFast) -> None:
    result = forced(tokenizer, harness, "a STOP b", stop="STOP", no_stop_trim=True)
    assert result["text"] == "a STOP"


def test_a_special_token_as_stop_string(harness: Harness, tokenizer: PreTrainedTokenizerFast) -> None:
    result = forced(tokenizer, harness, "hi<|im_start|>x", stop=["<|im_start|>"])
    assert result["text"] == "hi"
    assert result["meta_info"]["finish_reason"]["matched"] == "<|im_start|>"


def test_a_stop_string_of_several_bytes_per_character(harness: Harness, tokenizer: PreTrainedTokenizerFast) -> None:
    result = forced(tokenizer, harness, "größe → ende", stop=["→ e"])
    assert result["text"] == "größe "
    assert decode(result["output_ids"]) == "größe → e"


def test_the_first_stop_string_in_the_text_wins(harness: Harness, tokenizer: PreTrainedTokenizerFast) -> None:
    result = forced(tokenizer, harness, "xx abcd", stop=["abc", "bc", "zzz"])
    assert result["meta_info"]["finish_reason"]["matched"] == "abc"
    assert result["text"] == "xx "


@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=3))
def test_the_tail_finds_what_a_plain_search_finds(text: str, stops: list[str]) -> None:
    ids = BYTES.encode(text, add_special_tokens=False)
    tail = TextTail(decode, tuple(stops))
    for end in range(1, len(ids) + 1):
        so_far = decode(ids[:end], False)
        found = tail.push(ids[:end])
        if so_far.endswith("\ufffd"):
            assert found is None or found in so_far
            continue
        places = {so_far.find(stop): stop for stop in stops if stop in so_far}
        if places:
            assert found is not None
            assert found in places.values()
            return
        assert found is None


@given(st.text(max_size=60), st.integers(1, 5))
def test_growing_text_ends_as_the_whole_text(text: str, stride: int) -> None:
    ids = BYTES.encode(text, add_special_tokens=False)
    growing = GrowingText(decode, skip_special_tokens=False)
    seen = ""
    for end in [*range(stride, len(ids), stride), len(ids)]:
        now = growing.push(ids[:end])
        assert now.startswith(seen)
        seen = now
    if not decode(ids, False).endswith("\ufffd"):
        assert seen == decode(ids, False)


def test_a_folder_without_a_tokenizer(tmp_path: Any) -> None:
    tokenizer = Tokenizer(tmp_path)
    assert not tokenizer.available
    assert tokenizer.decode([1, 2]) == ""


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_in_the_text(skip: bool, harness: Harness, tokenizer: PreTrainedTokenizerFast) -> None:
    result = forced(tokenizer, harness, "a<|im_start|>b", skip_special_tokens=skip)
    assert result["text"] == ("ab" if skip else "a<|im_start|>b")
