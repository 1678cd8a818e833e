"""What every format owes: the same battery over all of them."""

from __future__ import annotations

import json

import pytest
from syntaxes import CALC, SYNTAXES, TOOLS, Call, Syntax

from agentrl.types import ParsedTurn

ALL = pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)


def found(turn: ParsedTurn) -> list[Call]:
    return [(call.name, call.arguments) for call in turn.tool_calls]


def assert_clean(syntax: Syntax, turn: ParsedTurn) -> None:
    assert not [mark for mark in syntax.marks if mark in turn.content]


@ALL
def test_one_call(syntax: Syntax) -> None:
    turn = syntax.parser.parse(syntax.calls([syntax.example()]), TOOLS)
    assert (found(turn), turn.errors) == ([syntax.example()], [])
    assert_clean(syntax, turn)


@ALL
def test_several_calls_have_ids_of_their_own(syntax: Syntax) -> None:
    calls = [syntax.example(number) for number in range(3)]
    turn = syntax.parser.parse(syntax.calls(calls), TOOLS)
    assert (found(turn), turn.errors) == (calls, [])
    assert len({call.id for call in turn.tool_calls}) == 3
    assert_clean(syntax, turn)


@ALL
def test_text_before_and_after_is_content(syntax: Syntax) -> None:
    text = syntax.turn(syntax.say("Before it."), syntax.calls([syntax.example()]), syntax.say("After it."))
    turn = syntax.parser.parse(text, TOOLS)
    assert (found(turn), turn.errors) == ([syntax.example()], [])
    assert "Before it." in turn.content
    assert "After it." in turn.content
    assert_clean(syntax, turn)


@ALL
def test_text_without_calls_is_content(syntax: Syntax) -> None:
    for words in ("The answer is 42.", "f(x) = {1, 2} [3] <b> ```x```", "to=5, name: you", ""):
        turn = syntax.parser.parse(syntax.say(words), TOOLS)
        assert (turn.content, turn.wants_tools) == (words, False)
        assert syntax.parser.parse(f" {words} ").content == words


@ALL
def test_thinking_makes_no_calls(syntax: Syntax) -> None:
    draft, call = syntax.calls([syntax.example(1)]), syntax.calls([syntax.example(2)])
    thought = syntax.think(f"I could write\n{draft}\nhere.")
    assert not syntax.parser.parse(syntax.turn(thought, syntax.say("42")), TOOLS).wants_tools
    turn = syntax.parser.parse(syntax.turn(thought, call), TOOLS)
    assert (found(turn), turn.errors) == ([syntax.example(2)], [])
    turn = syntax.parser.parse(syntax.turn(thought, call, thought), TOOLS)
    assert found(turn) == [syntax.example(2)]


@ALL
def test_thinking_that_never_ends_makes_no_calls(syntax: Syntax) -> None:
    draft = syntax.calls([syntax.example()])
    assert not syntax.parser.parse(f"{syntax.thinks_for_ever}\n{draft}", TOOLS).wants_tools


@pytest.mark.parametrize("syntax", [s for s in SYNTAXES if s.format != "gpt-oss"], ids=lambda syntax: syntax.name)
def test_thinking_that_the_prompt_began(syntax: Syntax) -> None:
    draft, call = syntax.calls([syntax.example(1)]), syntax.calls([syntax.example(2)])
    turn = syntax.parser.parse(f"I could write\n{draft}\n</think>\n{call}", TOOLS)
    assert (found(turn), turn.errors) == ([syntax.example(2)], [])
    assert draft in turn.content


@ALL
def test_a_cut_call_is_no_call(syntax: Syntax) -> None:
    whole = syntax.calls([syntax.example()])
    complete = whole.index(syntax.complete_at) + len(syntax.complete_at) if syntax.complete_at else len(whole)
    explained = 0
    for length in range(complete):
        turn = syntax.parser.parse(whole[:length], TOOLS)
        assert not turn.tool_calls, whole[:length]
        explained += bool(turn.errors)
    assert explained >= 3
    assert syntax.parser.parse(whole[:complete], TOOLS).tool_calls


@ALL
def test_a_cut_call_after_a_whole_one(syntax: Syntax) -> None:
    whole = syntax.calls([syntax.example()])
    cut = syntax.calls([syntax.example(2)])
    turn = syntax.parser.parse(syntax.turn(whole, cut[: cut.rindex("2")]), TOOLS)
    assert found(turn) == [syntax.example()]
    assert turn.errors[0].startswith("Tool call 2 was not run: ")


@ALL
def test_nested_values_and_quotes(syntax: Syntax) -> None:
    arguments = {
        "text": "She said \"}]\" and '{[' \\ \t é 漢 \U0001f600",
        "deep": {"a": [1, {"b": None, "c": [True, False, -1.5e-3]}], "": ""},
        "list": [[], {}, "", '"'],
    }
    call = ("search", {"query": arguments["text"].strip()}) if syntax.arguments == "query" else ("calc", arguments)
    turn = syntax.parser.parse(syntax.calls([call, call]), TOOLS)
    assert (found(turn), turn.errors) == ([call, call], [])


@ALL
def test_look_alikes_in_a_text(syntax: Syntax) -> None:
    if syntax.arguments == "query":
        return  # the tags are all the structure there is
    marks = ["<tool_call>", "</tool_call>", "</parameter>", "</arg_value>", "<think>", "</think>", "[TOOL_CALLS]"]
    marks += [*syntax.marks, "<|call|>", "<|end|>", "```", "\nAction: x\n", "\nObservation: "]
    for mark in marks:
        call = ("calc", {"text": f"a {mark} b {mark}", "a": 1})
        turn = syntax.parser.parse(syntax.calls([call]), TOOLS)
        assert (found(turn), turn.errors) == ([call], []), mark
        assert_clean(syntax, turn)


@ALL
def test_an_unknown_tool_is_a_call(syntax: Syntax) -> None:
    if syntax.arguments == "query":
        assert found(syntax.parser.parse("<search>q</search>", [CALC])) == [("search", {"query": "q"})]
        return
    call = ("unheard_of", {"a": 1, "text": "x"})
    for tools in (TOOLS, None, []):
        turn = syntax.parser.parse(syntax.calls([call]), tools)
        assert (found(turn), turn.errors) == ([call], [])


@ALL
def test_numbers_of_any_length(syntax: Syntax) -> None:
    if syntax.arguments == "query":
        return
    call = ("calc", {"a": 7**2000, "list": [[[]]] * 200})
    assert found(syntax.parser.parse(syntax.calls([call]), TOOLS)) == [call]


JSON = pytest.mark.parametrize("syntax", [s for s in SYNTAXES if s.arguments == "json"], ids=lambda syntax: syntax.name)


@JSON
def test_arguments_as_a_string_of_json(syntax: Syntax) -> None:
    written = syntax.calls([("calc", {"a": 1})])
    assert written.count('{"a": 1}') == 1
    turn = syntax.parser.parse(written.replace('{"a": 1}', json.dumps('{"a": 1}')), TOOLS)
    if syntax.name == "mistral names":  # a name is followed by an object
        assert turn.errors
    else:
        assert (found(turn), turn.errors) == ([("calc", {"a": 1})], [])


@JSON
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[1]", "are a JSON array"),
        ("7", "are a JSON number"),
        ("true", "are a JSON boolean"),
        ('"seven"', "not a JSON object"),
        ('"[1]"', "are a JSON array"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": 1e999}', "is too large"),
        ('{"a": "\\ud800"}', "half of a surrogate pair"),
        ('{"a": 1,}', ""),
        ("{'a': 1}", ""),
        ('{"a": 1', ""),
        ('{"a": ' + "[" * 3000 + "]" * 3000 + "}", "nested too deeply"),
        ('{"a": ' + "[" * 500 + "]" * 500 + "}", "nested too deeply"),
        ('"{\\"a\\": 1} x"', "extra text after it: 'x'"),
        ('{"a": ' + "9" * 5000 + "}", ""),
    ],
)
def test_wrong_arguments_are_explained(syntax: Syntax, given: str, message: str) -> None:
    first, second = syntax.calls([("calc", {"a": 1})]), syntax.calls([syntax.example(2)])
    turn = syntax.parser.parse(syntax.turn(first.replace('{"a": 1}', given), second), TOOLS)
    assert turn.wants_tools
    assert ("calc", {"a": 1}) not in found(turn)
    error = turn.errors[0]
    assert error.startswith("Tool call 1 was not run: ")
    assert len(error) < 500
    if "mistral names" not in syntax.name:
        assert message in error


@ALL
def test_a_call_after_a_broken_one_is_read(syntax: Syntax) -> None:
    first, second = syntax.calls([syntax.example(1)]), syntax.calls([syntax.example(2)])
    broken = {
        "typed": first.replace("</parameter>", "", 1).replace("</arg_value>", "", 1),
        "query": first.replace("query 1", ""),
        "python": first.replace("a=1", "a=b"),
        "json": first.replace("1", "oops"),
    }[syntax.arguments]
    turn = syntax.parser.parse(syntax.turn(broken, second), TOOLS)
    assert found(turn) == [syntax.example(2)]
    assert len(turn.errors) == 1


@ALL
def test_the_span_of_the_arguments(syntax: Syntax) -> None:
    calls = [syntax.example(1), syntax.example(22)]
    text = syntax.turn(syntax.say("22 words before"), syntax.calls(calls))
    turn = syntax.parser.parse(text, TOOLS)
    for call, (_, arguments) in zip(turn.tool_calls, calls, strict=True):
        assert call.arguments_span is not None
        inside = text[slice(*call.arguments_span)]
        (value,) = arguments.values()
        assert str(value) in inside
        assert call.name not in inside
        assert json.loads(inside) == arguments if syntax.arguments == "json" else len(inside) < 60


@ALL
def test_many_errors_are_counted(syntax: Syntax) -> None:
    call = syntax.calls([syntax.example()])
    turn = syntax.parser.parse(syntax.turn(*[call[: call.rindex("1")]] * 200), TOOLS)
    assert turn.wants_tools
    assert len(turn.errors) <= 33
