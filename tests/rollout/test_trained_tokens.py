"""What is trained: the loss mask only ever loses ones, and what was sampled stays on record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollout_helpers import ANSWER, CALL, MakeEngine, batch_of, sample
from transformers import PreTrainedTokenizerFast

from agentrl.chat.renderer import ChatRenderer
from agentrl.chat.tool_parsers.hermes import HermesToolParser
from agentrl.config.root import RunConfig
from agentrl.rollout.manager import AgentLoopManager
from agentrl.rollout.records import TokenArrays
from agentrl.rollout.trained_tokens import Training, argument_spans, token_span
from agentrl.types import AgentLoopOutput, ParsedTurn, StopReason, ToolCall

MakeManager = Callable[..., AgentLoopManager]
ARGUMENTS = '{"expression": "3+4"}'


def tokens_of(*turns: str, renderer: ChatRenderer) -> TokenArrays:
    """Turns with an observation of three ids between them."""
    ids: list[int] = []
    mask: list[int] = []
    for place, turn in enumerate(turns):
        sampled = [*renderer.encode_text(turn), renderer.turn_end_ids[-1]]
        gap = [1, 2, 3] if place else []
        ids, mask = [*ids, *gap, *sampled], [*mask, *[0] * len(gap), *[1] * len(sampled)]
    log_probs = [-0.5 * bit for bit in mask]
    return TokenArrays.of(
        AgentLoopOutput([1], ids, mask, log_probs, 4, StopReason.COMPLETED, [2 * b - 1 for b in mask])
    )


@pytest.fixture(scope="module")
def renderer(tokenizer: PreTrainedTokenizerFast) -> ChatRenderer:
    return ChatRenderer(tokenizer)


def shown(tokens: TokenArrays, renderer: ChatRenderer) -> str:
    """The text of what is trained."""
    return renderer.encoder.decode(tokens.response[tokens.loss_mask == 1].tolist())


END = "<|im_end|>"


@pytest.mark.parametrize(
    ("turns", "mask_arguments", "wanted"),
    [
        ("all_assistant", False, f"{CALL}{END}{ANSWER}{END}"),
        ("last_assistant", False, f"{ANSWER}{END}"),
        ("final_answer", False, f"{ANSWER}{END}"),
        ("all_assistant", True, f"{CALL.replace(ARGUMENTS, '')}{END}{ANSWER}{END}"),
        ("final_answer", True, f"{ANSWER}{END}"),
    ],
)
def test_what_is_left(turns: str, mask_arguments: bool, wanted: str, renderer: ChatRenderer) -> None:
    before = tokens_of(CALL, ANSWER, renderer=renderer)
    after = Training(turns, mask_arguments).narrow(before, renderer.decode, HermesToolParser().parse)
    assert shown(after, renderer) == wanted
    assert (after.loss_mask <= before.mask).all()
    for name in ("response", "mask", "log_probs", "versions"):
        assert np.array_equal(getattr(after, name), getattr(before, name))


@pytest.mark.parametrize("last", [CALL, "<tool_call>{", f"so: {CALL}"])
def test_a_call_is_no_final_answer(last: str, renderer: ChatRenderer) -> None:
    tokens = tokens_of(ANSWER, last, renderer=renderer)
    parse = HermesToolParser().parse
    assert not Training("final_answer").narrow(tokens, renderer.decode, parse).loss_mask.any()
    answered = Training("final_answer").narrow(tokens, renderer.decode, parse, answered_by_tool=True)
    assert shown(answered, renderer) == f"{last}{END}"
    assert shown(Training("last_assistant").narrow(tokens, renderer.decode, None), renderer) == f"{last}{END}"
    assert shown(Training("final_answer").narrow(tokens, renderer.decode, None), renderer) == f"{last}{END}"


WORDS = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=8)


@given(before=WORDS, inside=WORDS, after=WORDS)
def test_token_spans_hold_every_character(
    tokenizer: PreTrainedTokenizerFast, before: str, inside: str, after: str
) -> None:
    """With ids of one byte each: the span holds all bytes of its characters, and nothing beyond a broken one's."""
    renderer = ChatRenderer(tokenizer)
    text = before + inside + after
    ids = renderer.encode_text(text)
    if renderer.decode(ids) != text or "�" in text:
        return
    first, last = token_span(ids, (len(before), len(before) + len(inside)), renderer.decode)
    wanted = (len(renderer.encode_text(before)), len(renderer.encode_text(before + inside)))
    assert (first, last) == wanted


def test_boundary_tokens_are_left_out() -> None:
    """A token that holds a part of the arguments and a part of what surrounds them is not trained on."""
    pieces = ["ab", "c{", '"x"', "}d", "e"]
    decode = lambda ids: "".join(pieces[i] for i in ids)  # noqa: E731 - a decoder in one line
    assert token_span([0, 1, 2, 3, 4], (3, 8), decode) == (1, 4)
    assert token_span([0, 1, 2, 3, 4], (4, 7), decode) == (2, 3)
    assert token_span([0, 1], (4, 4), decode) == (2, 2)


@pytest.mark.parametrize(
    ("text", "call", "found"),
    [
        ('{"name": "f", "arguments": {"a": {"b": 1}}}', ToolCall("f", {"a": {"b": 1}}), '{"a": {"b": 1}}'),
        ('{"arguments": {"a": 1}, "name": "f"}', ToolCall("f", {"a": 1}), '{"a": 1}'),
        ("[f(a='x')]", ToolCall("f", {"a": "x"}), "(a='x')]"),
        ("<function=look><parameter=a>x</parameter>", ToolCall("look", {"a": "x"}), "><parameter=a>x</parameter>"),
        ("{" * 2000 + 'f{"a": 1}', ToolCall("f", {"a": 1}), '{"a": 1}'),
        ("?", ToolCall("f", {"a": 1}), "?"),
        ("f f:one", ToolCall("f", {}, arguments_span=(4, 7)), "one"),
    ],
)
def test_where_a_parser_does_not_say(text: str, call: ToolCall, found: str) -> None:
    (span,) = argument_spans(text, ParsedTurn("", [call]))
    assert text[slice(*span)] == found


def test_two_calls_of_the_same(renderer: ChatRenderer) -> None:
    spans = argument_spans(CALL * 2, HermesToolParser().parse(CALL * 2))
    assert [(CALL * 2)[slice(*span)] for span in spans] == [ARGUMENTS] * 2
    assert spans[0][1] <= spans[1][0]


def test_in_a_run(config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, encode: Any) -> None:
    turns = config.actor_rollout_ref.rollout.multi_turn
    turns.trainable_turns, turns.mask_tool_call_args = "final_answer", True
    manager = make_manager(make_engine().address)
    out = manager.generate_sequences(batch_of([sample(0)]))
    call, answer = encode(CALL), encode(ANSWER)
    loss_mask, versions = out.batch["loss_mask"][0], out.batch["weight_versions"][0]
    assert loss_mask.nonzero().flatten().tolist() == list(range(len(loss_mask) - len(answer), len(loss_mask)))
    assert (versions >= 0).sum().item() == len(call) + len(answer)
    assert out.batch["response_mask"][0].equal((versions >= 0).long())
    assert (out.batch["rollout_log_probs"][0] != 0).sum().item() == len(call) + len(answer)
    assert out.batch["rm_scores"][0].nonzero().flatten().tolist() == [len(versions) - 1]
    assert out.meta_info["metrics"]["rollout/untrainable"] == 0
    val = manager.generate_sequences(batch_of([sample(0)], validate=True))
    assert val.batch["response_mask"].sum().item() == len(call) + len(answer)
    assert val.batch["loss_mask"].equal(val.batch["response_mask"])


def test_the_reward_sits_on_the_last_sampled_token(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, play: Any
) -> None:
    turns = config.actor_rollout_ref.rollout.multi_turn
    turns.mask_tool_call_args, turns.max_assistant_turns = True, 1
    engine = make_engine(play(f"#### 7 {CALL}"))
    out = make_manager(engine.address).generate_sequences(batch_of([sample(0)]))
    (place,) = out.batch["rm_scores"][0].nonzero().flatten().tolist()
    assert place == out.batch["response_mask"][0].nonzero().max().item()
    assert out.batch["loss_mask"].sum() < out.batch["response_mask"].sum()
    assert out.batch["rm_scores"].sum().item() == 1.0


def test_trajectories_without_a_trained_token_are_left_out(
    config: RunConfig, make_engine: MakeEngine, make_manager: MakeManager, encode: Any
) -> None:
    """They are no failures: the budget of failures is not theirs."""
    turns = config.actor_rollout_ref.rollout.multi_turn
    turns.trainable_turns, turns.max_assistant_turns = "final_answer", 1
    config.actor_rollout_ref.rollout.max_failure_rate = 0.0

    def respond(payload: dict[str, Any]) -> tuple[list[int], str]:
        return encode(ANSWER if payload["rid"].split("-")[2] == "1" else CALL), "stop"

    manager = make_manager(make_engine(respond).address)
    out = manager.generate_sequences(batch_of([sample(0), sample(1), sample(2)]))
    assert list(out.non_tensor_batch["row"]) == [1]
    assert out.meta_info["failures"] == []
    assert out.meta_info["metrics"]["rollout/untrainable"] == 2
    assert out.meta_info["metrics"]["rollout/env_error_rate"] == 0
    none = manager.generate_sequences(batch_of([sample(0)]))
    assert len(none) == 0
    assert none.meta_info["metrics"]["rollout/untrainable"] == 1
    assert len(manager.join([none, out])) == 1
