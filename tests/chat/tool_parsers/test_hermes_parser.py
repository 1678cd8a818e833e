"""Hermes tool calls: what is read, and what the model is told about the rest."""

from __future__ import annotations

import pytest

from agentrl.chat.tool_parsers.hermes import HermesToolParser

PARSE = HermesToolParser().parse


def call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def test_calls_and_content_in_order() -> None:
    first, second = '{"name": "a", "arguments": {"x": [1, null]}}', '{"name": "b", "arguments": {}}'
    turn = PARSE(f"Let me see.\n{call(first)}\n{call(second)}")
    assert turn.content == "Let me see."
    assert [(c.name, c.arguments, c.id) for c in turn.tool_calls] == [
        ("a", {"x": [1, None]}, "call_0"),
        ("b", {}, "call_1"),
    ]
    assert not turn.errors


def test_text_without_calls_is_content() -> None:
    turn = PARSE(" 42 ")
    assert (turn.content, turn.wants_tools) == ("42", False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (call("{oops}"), "it is not valid JSON"),
        (call(""), "it is not valid JSON"),
        (call("[1]"), "it is a JSON array, expected an object"),
        (call("null"), "it is a JSON null"),
        (call('{"arguments": {}}'), 'it has no "name"'),
        (call('{"name": 1}'), 'it has no "name"'),
        (call('{"name": "a", "arguments": [1]}'), '"arguments" are a JSON array'),
        (call('{"name": "a", "arguments": "x"}'), '"arguments" are a string that is not a JSON object'),
        (call('{"name": "a", "arguments": {"x": NaN}}'), "NaN is not a JSON number"),
        (call("[" * 100_000), "nested too deeply"),
        (call('{"name": "a", "arguments": {"x": ' + "9" * 5000 + "}}"), "it is not valid JSON"),
        ('<tool_call>{"name": "a", "arguments": {}}', "no closing </tool_call>"),
    ],
)
def test_mistakes_are_explained(text: str, message: str) -> None:
    turn = PARSE(text)
    assert turn.wants_tools
    assert not turn.tool_calls
    assert message in turn.errors[0]
    assert turn.errors[0].startswith("Tool call 1 was not run: ")
    assert len(turn.errors[0]) < 500


def test_good_and_bad_calls_side_by_side() -> None:
    turn = PARSE(call('{"name": "a"}') + call("{") + call('{"name": "b"}'))
    assert [c.name for c in turn.tool_calls] == ["a", "b"]
    assert turn.errors[0].startswith("Tool call 2 was not run")


def test_an_unclosed_call_before_another() -> None:
    turn = PARSE('<tool_call>{"name": "a"}<tool_call>{"name": "b"}</tool_call>')
    assert [c.name for c in turn.tool_calls] == ["b"]
    assert len(turn.errors) == 1


def test_arguments_as_a_json_string_and_raw_newlines() -> None:
    turn = PARSE(
        call('{"name": "a", "arguments": "{\\"x\\": 1}"}') + call('{"name": "b", "arguments": {"code": "1\n2"}}')
    )
    assert [c.arguments for c in turn.tool_calls] == [{"x": 1}, {"code": "1\n2"}]


def test_a_call_inside_thinking_is_a_thought() -> None:
    good = call('{"name": "a"}')
    assert not PARSE(f"<think>I could write {good}</think>42").wants_tools
    turn = PARSE(f"<think>I could write {good}</think>{good}")
    assert len(turn.tool_calls) == 1
    assert turn.content.startswith("<think>")
