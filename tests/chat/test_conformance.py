"""The table of `agentrl check --template` says the right thing about each shape of template."""

from __future__ import annotations

import pytest

from agentrl.chat.conformance import Conformance, TemplateVerdict, conformance
from agentrl.chat.renderer import ChatRenderer
from tests.chat.shapes import SHAPES
from tests.chat.templates import FAMILIES, family_tokenizer
from tests.chat.test_shapes import SCHEMA

NO_TOOLS = ("empty_thoughts", "smollm2", "llama3", "gpt_oss", "deepseek", "glm", "alternating")
EXPECTED: dict[str, dict[str, str]] = {
    "hermes": {"separator": "'\\n', inserted", "tool-call format": "takes hermes"},
    "thinking": {
        "prefix-preserving": "no: rewrites an assistant turn with text when a tool message follows and an "
        "assistant turn with thinking when a user message follows",
        "thinking": "stripped from earlier turns",
    },
    "no_thinking": {"prefix-preserving": "no: rewrites an assistant turn with text when a tool message follows"},
    "empty_thoughts": {
        "prefix-preserving": "no: rewrites an assistant turn with text",
        "thinking": "kept; turns without any get an empty block",
    },
    "smollm2": {"separator": "'\\n', inserted", "tool-call format": "finds none"},
    "llama3": {"separator": "none", "end of turn": "'<|eot_id|>' (259); other stop ids: '<|eom_id|>' (260)"},
    "mistral": {
        "prefix-preserving": "no: rewrites the prompt when a user message follows",
        "tool-call format": "takes mistral",
    },
    "gpt_oss": {
        "tool messages": "yes, after the call",
        "end of turn": "'<|end|>'",
        "tool-call format": "takes gpt_oss",
    },
    "deepseek": {"separator": "none"},
    "glm": {"end of turn": "none of its own: the marker of the next role ends a turn", "separator": "none"},
    "gemma": {"tool messages": "yes, after the call", "separator": "'\\n', inserted"},
    "alternating": {"tool messages": "no: the chat template of this tokenizer cannot show a tool message"},
    "call_first": {"tool messages": "yes, after the call", "separator": "none"},
}


def lines_of(result: Conformance) -> dict[str, str]:
    return {line.topic: line.text for line in result.lines}


@pytest.mark.parametrize("name", SHAPES)
def test_the_table_of_each_shape(name: str) -> None:
    result = conformance(SHAPES[name].renderer)
    lines, expected = lines_of(result), EXPECTED[name]
    assert result.usable
    for topic, text in expected.items():
        assert text in lines[topic]
    assert (lines["prefix-preserving"] == "yes") == ("prefix-preserving" not in expected)
    assert lines["tools shown"].startswith("no: " if name in NO_TOOLS else "yes")
    assert lines.get("parallel tool messages") == (None if name == "alternating" else "yes")
    assert (lines["thinking"] == "kept") == (name not in ("thinking", "no_thinking", "empty_thoughts"))


@pytest.mark.parametrize("name", SHAPES)
def test_a_template_that_hides_the_offered_tools_is_unusable(name: str) -> None:
    result = conformance(SHAPES[name].renderer, [SCHEMA])
    assert result.usable == (name not in NO_TOOLS)
    if not result.usable:
        assert "omits the tools that a run offers (calculator)" in lines_of(result)["tools shown"]


def test_the_first_differing_token_is_shown_with_its_text() -> None:
    (before_tool, before_user) = conformance(SHAPES["thinking"].renderer, [SCHEMA]).report.differences
    assert (before_user.stream_token, before_user.canonical_token) == ("<", "I")
    assert before_user.stream_text.endswith("<|im_start|>assistant\n<think")
    assert before_user.canonical_text.endswith("<|im_start|>assistant\nIt is ")
    prompt = SHAPES["thinking"].renderer.render_prompt([{"role": "user", "content": "What is 41 + 1?"}], [SCHEMA])
    assert before_tool.position == before_user.position == len(prompt)


def test_one_call_at_a_time() -> None:
    template = (
        "{% for m in messages %}"
        "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
        "{% if m.role == 'tool' and messages[loop.index0 - 1].role == 'tool' %}{{ raise_exception('one') }}{% endif %}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endfor %}"
    )
    renderer = ChatRenderer(SHAPES["hermes"].renderer.tokenizer, chat_template=template)
    line = next(line for line in conformance(renderer).lines if line.topic == "parallel tool messages")
    assert (line.verdict, line.text) == (TemplateVerdict.NOTE, "no: set `multi_turn.max_parallel_calls` to 1")


def test_an_end_of_turn_that_is_no_stop_id() -> None:
    tokenizer = family_tokenizer(FAMILIES["llama3"])
    tokenizer.eos_token = "<|begin_of_text|>"
    line = conformance(ChatRenderer(tokenizer)).lines[1]
    assert line.verdict is TemplateVerdict.NOTE
    assert line.text.endswith("it is not a stop id: add it to `rollout.stop_token_ids`")
