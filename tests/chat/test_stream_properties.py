"""Whatever is said, the token stream is the canonical rendering and the mask marks exactly the sampled ids."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agentrl.chat.loading import load_renderer
from agentrl.chat.renderer import ChatRenderer
from agentrl.testing.loops import sampled
from agentrl.testing.models import byte_tokenizer
from agentrl.trajectory import Trajectory
from tests.chat.shapes import HERMES, PRESERVING, SHAPES

LOOK_ALIKES = (
    *("<|im_end|>", "<|im_start|>assistant\n", "<|endoftext|>", "<|eot_id|>", "<|end_of_sentence|>", "<|User|>"),
    *("<|user|>", "<|observation|>", "<|end|>", "<|call|>", "<tool_call>", "</tool_response>", "<|im_", "end|>"),
)
TEXTS = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(LOOK_ALIKES)), max_size=4).map("".join)
ANSWERS = TEXTS.map(lambda text: f"A{text}.")
"""Ordinary characters at both ends: real vocabularies merge newlines across the border of a turn."""
ROUNDS = st.lists(st.tuples(ANSWERS, st.one_of(st.lists(TEXTS, min_size=1, max_size=3), TEXTS)), min_size=1, max_size=4)
"""An answer and what follows it: several tool messages, or one user message."""
FAST = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check_stream(
    renderer: ChatRenderer, prompt: str, rounds: list[tuple[str, Any]], end: str, tool_end: str | None = None
) -> None:
    """`end` closes a turn before a user message, `tool_end` before a tool message, where that is another id."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    trajectory = Trajectory(renderer.render_prompt(messages), 100_000)
    mask: list[int] = []
    for index, (answer, following) in enumerate(rounds):
        is_user = isinstance(following, str) or index == len(rounds) - 1
        ids = [*renderer.encode_text(answer), renderer.encoder.special_ids[end if is_user else tool_end or end]]
        trajectory.append_completion(sampled(ids))
        mask += [1] * len(ids)
        if is_lossless(renderer):
            assert renderer.decode(ids) == normalised(renderer, answer)
        messages.append({"role": "assistant", "content": answer})
        if index == len(rounds) - 1:
            break
        if isinstance(following, str):
            observed = [{"role": "user", "content": following}]
        else:
            observed = [{"role": "tool", "name": "f", "content": text} for text in following]
        delta = renderer.delta(observed, sampled_ids=ids)
        assert trajectory.append_observation(delta)
        mask += [0] * len(delta)
        messages += observed
    canonical = renderer.render(messages)
    stream = trajectory.prompt_ids + trajectory.response_ids
    if not renderer.turn_end_ids:  # the last turn ended at the marker of a message that never came
        assert stream.pop() in renderer.stop_token_ids
    assert canonical[: len(stream)] == stream
    assert trajectory.response_mask == mask
    genuine = renderer.render([{**message, "content": "x"} for message in messages])
    specials = renderer.encoder.special_id_set
    assert [i for i in canonical if i in specials] == [i for i in genuine if i in specials]


@cache
def is_lossless(renderer: ChatRenderer) -> bool:
    """SmolLM2's vocabulary has no token for some bytes."""
    return set(pre_tokenizers.ByteLevel.alphabet()) <= set(renderer.tokenizer.get_vocab())


def normalised(renderer: ChatRenderer, text: str) -> str:
    normalizer = renderer.tokenizer.backend_tokenizer.normalizer
    return str(normalizer.normalize_str(text)) if normalizer else text


@cache
def byte_renderer() -> ChatRenderer:
    return ChatRenderer(byte_tokenizer())


@pytest.mark.parametrize("name", PRESERVING)
@given(prompt=TEXTS, rounds=ROUNDS)
@FAST
def test_text_turns_of_every_shape_that_preserves_prefixes(
    name: str, prompt: str, rounds: list[tuple[str, Any]]
) -> None:
    before_tool = "<|observation|>" if name == "glm" else None
    check_stream(SHAPES[name].renderer, prompt, rounds, SHAPES[name].family.stops[0], before_tool)


@given(TEXTS, ROUNDS)
@FAST
def test_chatml(prompt: str, rounds: list[tuple[str, Any]]) -> None:
    check_stream(byte_renderer(), prompt, rounds, "<|im_end|>")


@pytest.fixture(scope="session")
def qwen(qwen_folder: Path) -> ChatRenderer:
    """The real Qwen2.5 vocabulary with a template of its shape."""
    return ChatRenderer(AutoTokenizer.from_pretrained(qwen_folder), chat_template=HERMES)


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path) -> ChatRenderer:
    """The real SmolLM2 vocabulary with its own template."""
    return load_renderer(str(smollm2_folder))


@pytest.mark.parametrize("model", ["qwen", "smollm2"])
@given(prompt=TEXTS, rounds=ROUNDS)
@FAST
def test_a_real_vocabulary(
    model: str, request: pytest.FixtureRequest, prompt: str, rounds: list[tuple[str, Any]]
) -> None:
    check_stream(request.getfixturevalue(model), prompt, rounds, "<|im_end|>")


def without_specials(renderer: ChatRenderer, text: str) -> str:
    """Text in which no special token is left, nor one that appears where another was: '<|im_<|im_end|>end|>'."""
    while (shorter := renderer.encoder._special.sub("", text)) != text:
        text = shorter
    return text


@given(TEXTS)
@example("<|im_<|im_end|>end|>")
@FAST
def test_a_real_vocabulary_renders_as_transformers_does(qwen: ChatRenderer, text: str) -> None:
    clean = without_specials(qwen, text)
    messages = [{"role": "system", "content": clean}, {"role": "user", "content": clean}]
    reference = qwen.tokenizer.apply_chat_template(
        messages, chat_template=HERMES, add_generation_prompt=True, return_dict=False
    )
    assert qwen.render_prompt(messages) == reference


@cache
def prefix_space_renderer() -> ChatRenderer:
    """A sentencepiece-like tokenizer: the first piece of a text gets a space, later pieces do not."""
    characters = [chr(code) for code in range(32, 127)] + ["\n", "▁"]
    vocab = {"<unk>": 0, **{char: i + 1 for i, char in enumerate(characters)}}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|im_start|>", "<|im_end|>")])
    template = "{% for m in messages %}{{ m.role + ': <|im_start|>' + m.content + '<|im_end|> ' }}{% endfor %}"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", unk_token="<unk>")
    return ChatRenderer(tokenizer, chat_template=template)


@given(st.lists(st.text(alphabet="ab \n<|im_end>", max_size=8), min_size=1, max_size=3))
@FAST
def test_a_prefix_space_is_only_added_where_the_tokenizer_adds_it(texts: list[str]) -> None:
    renderer = prefix_space_renderer()
    messages = [{"role": "user", "content": text} for text in texts]
    assert renderer.render(messages) == renderer.tokenizer.apply_chat_template(
        messages, chat_template=renderer._template, return_dict=False
    )


def test_look_alikes_with_a_prefix_space() -> None:
    renderer = prefix_space_renderer()
    ids = renderer.render([{"role": "user", "content": "a<|im_end|>b"}, {"role": "user", "content": "c"}])
    end = renderer.encoder.special_ids["<|im_end|>"]
    assert ids.count(end) == 2
    assert renderer.encoder.decode(ids).count("<") == 5
