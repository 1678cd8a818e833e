"""R4 for every shape of template: the exact ids after a sampled turn, however it ended and whoever speaks next."""

from __future__ import annotations

import pytest

from agentrl.chat.turns import NEUTRAL
from agentrl.errors import TemplateError
from tests.chat.shapes import SHAPES, TOOL, TOOLS, USER, Case

ASKED = {"role": "user", "content": "Sure?"}
RESULT = {"role": "tool", "name": "calculator", "content": "42", "tool_call_id": "call00000"}
SECOND = {**RESULT, "content": "43", "tool_call_id": "call00001"}
FOLLOWING = {USER: [ASKED], TOOL: [RESULT], TOOLS: [RESULT, SECOND]}
CASES = [
    pytest.param(name, case, id=f"{name}-{case[0] or 'cut'}-{case[1]}")
    for name, shape in SHAPES.items()
    for case in shape.deltas
]
SCHEMA = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
    },
}


@pytest.mark.parametrize(("name", "case"), CASES)
def test_what_follows_a_sampled_turn(name: str, case: Case) -> None:
    renderer, (end, following) = SHAPES[name].renderer, case
    sampled = [*renderer.encode_text("Hm"), *([renderer.encoder.special_ids[end]] if end else [])]
    expected = renderer.encoder.encode(SHAPES[name].deltas[case], [])
    assert renderer.delta(FOLLOWING[following], sampled_ids=sampled) == expected
    if name != "mistral" or following != USER:  # Mistral offers the tools anew before a user message
        assert renderer.delta(FOLLOWING[following], sampled_ids=sampled, tools=[SCHEMA]) == expected


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if any(c[1] == TOOL for c in shape.deltas)])
def test_results_without_call_ids_are_shown_too(name: str) -> None:
    """The answer to a malformed call (R10) has no call id, and some parsers give none."""
    renderer = SHAPES[name].renderer
    bare = [{"role": "tool", "name": "calculator", "content": text} for text in ("42", "43")]
    sampled = renderer.encode_text("Hm")
    with_ids = renderer.delta([RESULT, SECOND], sampled_ids=sampled)
    assert renderer.delta(bare, sampled_ids=sampled) == with_ids
    other = [{**message, "tool_call_id": "call_7f"} for message in bare]
    assert len(renderer.delta(other, sampled_ids=sampled)) == len(with_ids)
    mixed = renderer.delta([RESULT, bare[1]], sampled_ids=sampled)
    assert mixed == with_ids


def test_mistral_offers_its_tools_before_the_last_user_message() -> None:
    renderer = SHAPES["mistral"].renderer
    sampled = [*renderer.encode_text("Hm"), renderer.encoder.special_ids["</s>"]]
    text = renderer.encoder.decode(renderer.delta([ASKED], sampled_ids=sampled, tools=[SCHEMA]))
    assert text.startswith("[AVAILABLE_TOOLS][")
    assert text.endswith("[/AVAILABLE_TOOLS][INST]Sure?[/INST]")


def test_a_template_without_tool_messages_says_so() -> None:
    renderer = SHAPES["alternating"].renderer
    with pytest.raises(TemplateError, match=r"cannot show a tool message .*Roles must alternate"):
        renderer.delta([RESULT], sampled_ids=[1])


def test_a_call_with_a_number_or_two_ends_as_any_other() -> None:
    """What the neutral call closes with (a quote) is not part of the scaffold."""
    renderer = SHAPES["gemma"].renderer
    call = renderer.encoder.encode("<|tool_call>call:calculator{x:7}<tool_call|>", [])
    for sampled in (call, [*call, *call]):
        sampled = [*sampled, renderer.encoder.special_ids["<|tool_response>"]]
        text = renderer.encoder.decode(renderer.delta([RESULT], sampled_ids=sampled))
        assert text == 'response:calculator{value:<|"|>42<|"|>}<tool_response|>'


@pytest.mark.parametrize("name", ["hermes", "deepseek", "glm"])
def test_no_text_of_a_message_is_taken_for_the_turn_that_stands_in(name: str) -> None:
    """A tool or a user could else cut out of the prompt whatever comes before that text, other results included."""
    renderer = SHAPES[name].renderer
    known = NEUTRAL.rstrip("0123456789abcdef")  # as far as the source tells it
    for text in (known, f"one {known} two"):
        for following in ([RESULT, {**SECOND, "content": text}], [{**ASKED, "content": text}]):
            sampled = renderer.encode_text("Hm")
            shown = renderer.encoder.decode(renderer.delta(following, sampled_ids=sampled))
            assert all(message["content"] in shown for message in following)


def test_no_message_is_just_the_next_generation_prompt() -> None:
    renderer = SHAPES["hermes"].renderer
    sampled = [*renderer.encode_text("Hm"), renderer.encoder.special_ids["<|im_end|>"]]
    assert renderer.encoder.decode(renderer.delta([], sampled_ids=sampled)) == "\n<|im_start|>assistant\n"
