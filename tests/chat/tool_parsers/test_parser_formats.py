"""What is particular to a format."""

from __future__ import annotations

import pytest
from syntaxes import CALC, SEARCH, TOOLS, Call

from agentrl.chat.tool_parsers.formats import format_named
from agentrl.types import JsonDict, ParsedTurn


def parse(name: str, text: str, tools: list[JsonDict] | None = None) -> ParsedTurn:
    row = format_named(name)
    assert row is not None
    return row.parser().parse(text, tools)


def calls(name: str, text: str, tools: list[JsonDict] | None = None) -> list[Call]:
    turn = parse(name, text, tools)
    assert not turn.errors
    return [(call.name, call.arguments) for call in turn.tool_calls]


def error(name: str, text: str, tools: list[JsonDict] | None = None) -> str:
    turn = parse(name, text, tools)
    assert not turn.tool_calls
    (only,) = turn.errors
    return only


def tool(name: str, **properties: JsonDict) -> JsonDict:
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, '"5"', '"5"'),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, " 5 ", 5),
        ({"type": "integer"}, "5.0", 5),
        ({"type": "integer"}, "5.5", 5.5),
        ({"type": "integer"}, "five", "five"),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "array"}, "1, 2", "1, 2"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "5", "5"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "five", "five"),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "5", "5"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": "1"}, "1", "1"),
        ({"$ref": "#/$defs/text"}, "5", "5"),
        ({"$ref": "#/$defs/loop"}, "5", 5),
        ({"$ref": "#/nowhere"}, "5", 5),
        ({"items": {}}, "[]", []),
        ({}, "5", 5),
        ({}, "five", "five"),
        (True, "None", None),
        ({"type": "number"}, "NaN", "NaN"),
    ],
)
def test_a_text_is_read_as_its_schema_says(schema: JsonDict, text: str, value: object) -> None:
    definitions = {"text": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    offered = {
        "function": {"name": "f", "parameters": {"properties": {"x": schema}, "$defs": definitions}},
    }
    glm = f"<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
    ((_, arguments),) = calls("glm", glm, [offered])
    assert arguments == {"x": value}
    assert type(arguments["x"]) is type(value)
    coder = f"<tool_call>\n<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>"
    assert calls("qwen3_coder", coder, [offered]) == [("f", {"x": value})]


def test_qwen3_coder_accepts_what_models_leave_out() -> None:
    inline = "<tool_call><function=calc><parameter=a>1</parameter><parameter=text>x</parameter></function></tool_call>"
    assert calls("qwen3_coder", inline, TOOLS) == [("calc", {"a": 1, "text": "x"})]
    bare = "Now:\n<function=calc>\n<parameter=text>\n\n x\n\n</parameter>\n</function>"
    assert calls("qwen3_coder", bare, TOOLS) == [("calc", {"text": "\n x\n"})]
    assert calls("qwen3_coder", "<tool_call>\n<function=calc>\n</function>\n</tool_call>") == [("calc", {})]
    empty = "<function=calc>\n<parameter=text>\n</parameter>\n</function>"
    assert calls("qwen3_coder", empty, TOOLS) == [("calc", {"text": ""})]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("qwen3_coder", '<tool_call>\n{"name": "calc"}\n</tool_call>', "does not begin with <function=NAME>"),
        ("qwen3_coder", "<function=calc>\nx\n</function>", "got 'x"),
        ("qwen3_coder", "<function=calc>\n<parameter=a>\n1\n</function>", "argument 'a' has no end"),
        ("qwen3_coder", "<tool_call><function=calc></function>", "got '</function>'"),
        ("glm", '<tool_call>\n{"name": "calc"}\n</tool_call>', "does not begin with the name"),
        ("glm", "<tool_call>calc\n<arg_key>a</arg_key>\n1</tool_call>", "expected <tool_call>NAME <arg_key>"),
        ("glm", "<tool_call>calc", "got the end"),
        ("hermes", '<tool_call>{"name": "a"} and more</tool_call>', "extra text after it: 'and more'"),
        ("hermes", '<tool_call>{"name": "a", "x": 1}</tool_call>', 'it has no "arguments"'),
        ("llama3_json", "<|python_tag|>print(1)", "not followed by JSON"),
        ("json", '{"arguments": {"a": 1}}', 'it has no "name"'),
        ("json", '{"name": 7, "arguments": {}}', 'it has no "name"'),
        ("mistral", "[TOOL_CALLS] calc", "neither NAME[ARGS]{...}"),
        ("mistral", "[TOOL_CALLS][]", "is empty"),
        ("mistral", "[TOOL_CALLS][7]", "it is a JSON number"),
        ("mistral", "[TOOL_CALLS]calc[ARGS][1]", "neither NAME[ARGS]{...}"),
        ("deepseek", '<｜tool▁call▁begin｜>{"name": "calc"}<｜tool▁call▁end｜>', "no <｜tool▁sep｜> after"),
        ("deepseek", '<｜tool▁call▁begin｜>calc<｜tool▁sep｜>{"a": 1}', "no closing <｜tool▁call▁end｜>"),
        ("kimi_k2", '<|tool_call_begin|>{"name": "calc"}<|tool_call_end|>', "after functions.NAME:INDEX"),
        ("pythonic", "[calc(1)]", "an argument of calc has no name"),
        ("pythonic", "[calc(a=b)]", "expected a value (a text needs quotes), got 'b)]'"),
        ("pythonic", "[calc(a=1, a=2)]", "'a' twice"),
        ("pythonic", "[calc(a=1e999)]", "too large"),
        ("pythonic", "[calc(a={1: 2})]", "has to be a text"),
        ("pythonic", "[calc(a={'1' 2})]", "expected ':'"),
        ("pythonic", "[calc(a=1 b=2)]", "expected ',' or ')'"),
        ("pythonic", "[calc(a=1), 7]", "the name of a tool, got '7]'"),
        ("pythonic", "[calc(a=1), calc]", "expected '('"),
        ("pythonic", "[calc(a='\\ud800')]", "cannot be read"),
        ("pythonic", f"[calc(a={'[' * 200})]", "nested too deeply"),
        ("pythonic", "[calc(a=__import__('os').system('true'))]", "expected a value"),
        ("gpt_oss", "<|channel|>commentary to=functions.calc", "is not finished"),
        ("gpt_oss", "<|channel|>commentary to=functions.calc<|message|>", "not a JSON object"),
        (
            "gpt_oss",
            '<|channel|>commentary to=functions.calc<|message|>{"a": 1} ok<|call|>',
            "extra text after it: 'ok'",
        ),
        ("react", "Action: calc", "not followed by an 'Action Input:' line"),
        ("react", "Action:\nAction Input: {}", "not followed by the name of a tool"),
        ("react", 'Action: calc\nAction Input: {"a": 1} please', "extra text after it: 'please'"),
        ("react", "Action: calc\nAction Input: one", "not one JSON object"),
        ("react", "Action: calc\nAction Input: [1]", "are a JSON array"),
        ("react", 'Action: search\nAction Input: {"query": "x"', "not one JSON object"),
        ("search_r1", "<search>x", "no closing </search>"),
        ("search_r1", "<search> \n</search>", "its query is empty"),
    ],
)
def test_mistakes_are_explained(name: str, text: str, message: str) -> None:
    assert message in error(name, text, TOOLS)


def test_json_that_is_no_call_is_text() -> None:
    for text in (
        '{"name": "Ada", "age": 36}',
        '[{"name": "Ada"}]',
        '{"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}',
        '{"answer": 42}',
        '{"name": "Ada"}',
    ):
        turn = parse("json", text, TOOLS)
        assert (turn.content, turn.wants_tools) == (text, False)
        assert not parse("llama3_json", text, TOOLS).wants_tools


def test_json_in_other_shapes() -> None:
    assert calls("json", '{"name": "calc"}', TOOLS) == [("calc", {})]
    wrapped = (
        '{"tool_calls": [{"id": "x1", "type": "function", "function": {"name": "f", "arguments": "{\\"a\\": 1}"}}]}'
    )
    turn = parse("json", f"So: {wrapped}")
    assert (turn.content, turn.tool_calls[0].id) == ("So:", "x1")
    assert calls("json", wrapped) == [("f", {"a": 1})]
    official = '<|python_tag|>{"type": "function", "name": "f", "parameters": {"a": 1}}'
    assert calls("llama3_json", official) == [("f", {"a": 1})]
    assert calls("json", '```\n{"arguments": {}, "name": "f"}\n```') == [("f", {})]


def test_arguments_are_found_among_other_keys() -> None:
    text = '{"name": "f", "x": {"arguments": 7}, "arguments": {"a": 1}}, {"name": "f", "arguments": " "}'
    turn = parse("json", f"[{text}, 5]")
    assert [text[slice(*(place - 1 for place in call.arguments_span))] for call in turn.tool_calls] == [
        '{"a": 1}',
        '" "',
    ]
    assert [call.arguments for call in turn.tool_calls] == [{"a": 1}, {}]
    assert "it is a JSON number" in turn.errors[0]


def test_broken_json_ends_where_its_brackets_do() -> None:
    turn = parse("json", 'A {"name": "f", "arguments": {"a": [1, "}"], }} B')
    assert (turn.content, len(turn.errors)) == ("A  B", 1)


def test_mistral_identifiers() -> None:
    text = '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "AbC123xyz"}, {"name": "g", "arguments": {}}]'
    assert [call.id for call in parse("mistral", text).tool_calls] == ["AbC123xyz", "call00001"]
    text = "[TOOL_CALLS]f[CALL_ID]AbC123xyz[ARGS]{}[TOOL_CALLS]g{}"
    assert [(call.name, call.id) for call in parse("mistral", text).tool_calls] == [
        ("f", "AbC123xyz"),
        ("g", "call00001"),
    ]
    assert calls("mistral", ' [TOOL_CALLS] {"name": "f", "arguments": {}}') == [("f", {})]


def test_kimi_names_and_identifiers() -> None:
    for written, name in (
        ("functions.f:0", "f"),
        ("f:12", "f"),
        ("functions.a.b:3", "a.b"),
        ("f", "f"),
        ("a:1:0", "a:1"),
    ):
        text = f"<|tool_call_begin|> {written} <|tool_call_argument_begin|> {{}} <|tool_call_end|>"
        (call,) = parse("kimi_k2", text).tool_calls
        assert (call.name, call.id) == (name, written)


def test_a_deepseek_tool_named_function() -> None:
    v31 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    v3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>function\n```json\n{}\n```<｜tool▁calls▁end｜>"
    assert calls("deepseek", v31) == calls("deepseek", v3) == [("function", {})]


def test_python_literals() -> None:
    text = r"""[f(a='it\'s', b="\x41\u00e9\U0001F600\101\n", c=r"\d", d='''x"y''', e="a" 'b', g=(1, -2.5, +3,), # hi
        h={'k': None, "m": true}, i=1_000, j=.5, k="\ud83d\ude00", l="\N{DIGIT ONE}\N{no such}\q"), get-it.now()]"""
    arguments = {
        "a": "it's",
        "b": "Aé\U0001f600A\n",
        "c": r"\d",
        "d": 'x"y',
        "e": "ab",
        "g": [1, -2.5, 3],
        "h": {"k": None, "m": True},
        "i": 1000,
        "j": 0.5,
        "k": "\U0001f600",
        "l": r"1\N{no such}\q",
    }
    assert calls("pythonic", text) == [("f", arguments), ("get-it.now", {})]


def test_mathematics_is_no_pythonic_call() -> None:
    for text in ("x lies in [f(0), f(1)].", "[see](page) [a(b)", "[calculus(x)] is a field"):
        assert parse("pythonic", text, TOOLS).content == text
    assert parse("pythonic", "It is [calc(1)].", TOOLS).errors
    assert parse("pythonic", "[f(0)]").errors


def test_harmony_channels() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm. <|channel|>commentary to=functions.f<|message|>{}<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look it up.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "<|end|>"}<|call|>'
        "<|start|>assistant<|channel|>final<|message|>Done."
    )
    turn = parse("gpt_oss", text)
    assert turn.content == "I look it up.Done."
    assert [(call.name, call.arguments) for call in turn.tool_calls] == [("f", {"a": "<|end|>"})]
    assert text[slice(*turn.tool_calls[0].arguments_span)] == '{"a": "<|end|>"}'


def test_a_harmony_call_on_the_analysis_channel() -> None:
    call = "<|channel|>analysis to=functions.f <|constrain|>json<|message|>{}"
    assert calls("gpt_oss", call) == calls("gpt_oss", f"{call}<|call|>") == [("f", {})]
    assert not parse("gpt_oss", f"{call}<|end|>").wants_tools
    assert not parse("gpt_oss", "<|channel|>final to=user<|message|>Hi").wants_tools
    assert calls("gpt_oss", "<|channel|>commentary to=python<|message|>{}") == [("python", {})]


def test_react_stops_at_what_the_model_makes_up() -> None:
    action = 'Action: calc\nAction Input: {"a": 1}\n'
    assert calls("react", f"{action}Observation: 2\n{action}", TOOLS) == [("calc", {"a": 1})]
    assert parse("react", f"{action}Observation:", TOOLS).content == ""
    answered = parse("react", f"Final Answer: 42\n{action}", TOOLS)
    assert not answered.wants_tools
    assert answered.content.startswith("Final Answer: 42")


def test_react_input_of_a_single_argument() -> None:
    for given, query in (
        ("tall towers", "tall towers"),
        ('"tall towers"', "tall towers"),
        ('{"query": "tall towers"}', "tall towers"),
        ('"{\\"query\\": \\"tall towers\\"}"', "tall towers"),
        ("```\ntall\ntowers\n```", "tall\ntowers"),
        ("7", "7"),
        ("{7} towers", None),
    ):
        turn = parse("react", f"Action: search\nAction Input: {given}\nThought: done", [SEARCH])
        assert [call.arguments for call in turn.tool_calls] == ([] if query is None else [{"query": query}])
        assert turn.content == "Thought: done"
    fenced = 'Action: calc\nAction Input:\n```json\n{"a": 1}\n```\nThought: done'
    assert calls("react", fenced, [CALC]) == [("calc", {"a": 1})]


def test_search_r1_first_tag_decides_and_the_schema_names_the_argument() -> None:
    assert not parse("search_r1", "<answer>42</answer> <search>x</search>").wants_tools
    assert calls("search_r1", "<search>x</search> <answer>42</answer>") == [("search", {"query": "x"})]
    listed = tool("search", query_list={"type": "array", "items": {"type": "string"}})
    assert calls("search_r1", "<search>x</search>", [listed]) == [("search", {"query_list": ["x"]})]
    both = tool("search", query_list={"type": "array"}, query={"type": "string"})
    assert calls("search_r1", "<search>5</search>", [both]) == [("search", {"query": "5"})]
    assert calls("search_r1", "<search>5</search>", [tool("search", q={"type": "integer"})]) == [("search", {"q": 5})]


def test_a_thought_may_quote_the_end_of_thinking() -> None:
    call = '<tool_call>{"name": "a", "arguments": {"text": "</think>"}}</tool_call>'
    assert calls("hermes", call) == [("a", {"text": "</think>"})]
    assert not parse("hermes", f"<think>I write {call} now</think>42").wants_tools
    assert calls("hermes", f"<think>I write {call} now</think>{call}") == [("a", {"text": "</think>"})]
