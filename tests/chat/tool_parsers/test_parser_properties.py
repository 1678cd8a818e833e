"""Properties of every parser: what was written is read, no text raises, and long texts cost what they are long."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import pytest
from cpu_time import takes_less
from hypothesis import given, settings
from hypothesis import strategies as st
from syntaxes import CALC, SYNTAXES, TOOLS, Call, Syntax

ALL = pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)

TAGS = [
    *("<tool_call>", "</tool_call>", "<function=calc>", "</function>", "<parameter=a>", "</parameter>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|python_tag|>", "<|python_start|>", "<|python_end|>"),
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<think>", "</think>", "[THINK]", "[/THINK]", "<search>", "</search>"),
    *("<answer>", "</answer>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"),
    *("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|call|>", "<|end|>", "<|return|>"),
    *("\nAction: ", "\nAction Input: ", "\nThought: ", "\nObservation:", "\nFinal Answer: ", "```json\n", "```"),
    *("calc", "functions.calc:0", "commentary to=functions.calc", "analysis"),
]
BITS = [
    *('{"name": "calc", "arguments": {"a": 1}}', '{"name": ', '{"type": "function", ', "[calc(", "[calc(a=1)]", "null"),
    *('"', "'", '"""', "{", "}", "[", "]", "(", ")", ",", ":", "=", "\\", "\\u", "\n", " ", "1", "-", "é", "\0"),
]
PIECES = st.lists(st.sampled_from([*TAGS, *BITS]) | st.text(max_size=5), max_size=24).map("".join)

TEXT = st.lists(st.text(max_size=8) | st.sampled_from([*TAGS, '"', "\\", "'", "\n"]), max_size=5).map("".join)
NUMBER = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
IDENTIFIER = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
PYTHON_WORDS = {"True", "False", "None", "true", "false", "null"}
ENDS_A_VALUE = re.compile(
    r"</(parameter|arg_value)>\s*(<parameter=|<arg_key>|</function>|</tool_call>)|</(tool_call|function)>\s*<(tool_call>|f)"
)


def typed_text() -> st.SearchStrategy[str]:
    """Texts that a format of tags can hold: none that looks like the end of a value and what follows it."""
    return TEXT.filter(lambda text: not ENDS_A_VALUE.search(text))


def calls_of(syntax: Syntax) -> st.SearchStrategy[list[Call]]:
    if syntax.arguments == "query":
        query = TEXT.map(str.strip).filter(lambda text: text and not re.search("<(/?search|answer)>", text))
        return st.lists(st.tuples(st.just("search"), st.fixed_dictionaries({"query": query})), min_size=1, max_size=3)
    if syntax.arguments == "typed":
        fields = {
            "a": st.integers(),
            "text": typed_text(),
            "deep": st.dictionaries(st.text(max_size=4), JSON, max_size=3).filter(_fits),
            "list": st.lists(JSON, max_size=3).filter(_fits),
            "maybe": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "flag": st.booleans(),
        }
        given_fields = st.fixed_dictionaries({}, optional=fields)
        return st.lists(st.tuples(st.just("calc"), given_fields), min_size=1, max_size=3)
    keys = IDENTIFIER if syntax.arguments == "python" else TEXT
    names = st.text(min_size=1) if syntax.free_names else IDENTIFIER
    if syntax.format == "react":
        names = IDENTIFIER.filter(lambda name: name not in PYTHON_WORDS)
    return st.lists(st.tuples(names, st.dictionaries(keys, JSON, max_size=3)), min_size=1, max_size=3)


def _fits(value: Any) -> bool:
    return not ENDS_A_VALUE.search(json.dumps(value, ensure_ascii=False))


@ALL
@settings(max_examples=40)
@given(data=st.data())
def test_what_was_written_is_read(syntax: Syntax, data: st.DataObject) -> None:
    calls = data.draw(calls_of(syntax))
    turn = syntax.parser.parse(syntax.calls(calls), TOOLS)
    assert not turn.errors
    assert [(call.name, call.arguments) for call in turn.tool_calls] == calls
    assert not [mark for mark in syntax.marks if mark in turn.content]


@ALL
@settings(max_examples=80)
@given(text=PIECES, offered=st.sampled_from([TOOLS, [CALC], [], None]))
def test_no_text_raises(syntax: Syntax, text: str, offered: list[dict[str, Any]] | None) -> None:
    turn = syntax.parser.parse(text, offered)
    assert all(call.name and isinstance(call.arguments, dict) for call in turn.tool_calls)
    assert all(call.arguments_span[0] <= call.arguments_span[1] <= len(text) for call in turn.tool_calls)
    assert all(0 < len(error) < 700 for error in turn.errors)
    if not turn.wants_tools and syntax.format != "gpt-oss":
        assert set(turn.content) <= set(text)
    json.dumps([call.arguments for call in turn.tool_calls], ensure_ascii=False).encode()


UNITS = [
    *(*TAGS, *BITS),
    *(tag + bit for tag in TAGS for bit in ("{", '{"name": "', " ", "x\n", '["')),
    *(tag + other for shift in (1, 5, 11) for tag, other in zip(TAGS, TAGS[shift:] + TAGS[:shift], strict=True)),
    *('<tool_call>{"name": "calc", "arguments": {"a": "', '{"name":{"arguments":', '"name": "', '\\"', "``` ", "[ "),
    *("[calc(a=[", '[calc(a="', "[calc(a='\\", '[calc(a=""" ', "<|channel|>commentary to=functions.f"),
    *("<function=calc><parameter=a>\n", "<tool_call>calc<arg_key>a</arg_key><arg_value>", "Action: c\nAction Input: "),
]
STARTS = ["<tool_call>", "[TOOL_CALLS]", "```", "[", '{"name": "', "Action: c\nAction Input: ", "[calc(", "<think>"]


def hostile_texts(size: int) -> dict[str, str]:
    """Texts that make careless patterns quadratic."""
    texts = {unit: (unit * (size // len(unit) + 1))[:size] for unit in UNITS}
    for start in STARTS:
        for filling in (" ", "\n", '\\"', "9", "x"):
            texts[start + filling] = start + filling * (size // len(filling))
    return texts


@ALL
def test_hostile_texts_cost_what_they_are_long(syntax: Syntax) -> None:
    """All are tried short; what takes 10 ms there and grows with the square would take 1.5 s long."""
    for what, text in hostile_texts(8_000).items():
        if not takes_less(partial(syntax.parser.parse, text, TOOLS), 0.01, tries=1):
            long = hostile_texts(100_000)[what]
            assert takes_less(partial(syntax.parser.parse, long, TOOLS), 1.5), what
