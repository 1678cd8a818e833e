"""How each format writes thoughts, text and calls: what a model of that family would sample."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.chat.tool_parsers.formats import format_named
from agentrl.interfaces import ToolParser

Call = tuple[str, dict[str, Any]]

CALC: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "text": {"type": "string"},
                "deep": {"type": "object"},
                "list": {"type": "array", "items": {}},
                "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                "flag": {"type": "boolean"},
            },
        },
    },
}
SEARCH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
TOOLS = [CALC, SEARCH]


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def json_call(key: str = "arguments") -> Callable[[Call], str]:
    return lambda call: dumps({"name": call[0], key: call[1]})


def qwen3_coder_call(call: Call) -> str:
    pairs = "".join(f"<parameter={key}>\n{as_text(value)}\n</parameter>\n" for key, value in call[1].items())
    return f"<tool_call>\n<function={call[0]}>\n{pairs}</function>\n</tool_call>"


def glm_call(call: Call) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{as_text(value)}</arg_value>\n" for key, value in call[1].items()
    )
    return f"<tool_call>{call[0]}\n{pairs}</tool_call>"


def pythonic_calls(calls: Sequence[Call]) -> str:
    written = (f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" for name, given in calls)
    return f"[{', '.join(written)}]"


def kimi_calls(calls: Sequence[Call]) -> str:
    written = (
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{dumps(given)}<|tool_call_end|>"
        for index, (name, given) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{''.join(written)}<|tool_calls_section_end|>"


def deepseek_v3_calls(calls: Sequence[Call]) -> str:
    written = (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dumps(given)}\n```<｜tool▁call▁end｜>"
        for name, given in calls
    )
    return "<｜tool▁calls▁begin｜>" + "\n".join(written) + "<｜tool▁calls▁end｜>"


def deepseek_v31_calls(calls: Sequence[Call]) -> str:
    written = (f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumps(given)}<｜tool▁call▁end｜>" for name, given in calls)
    return f"<｜tool▁calls▁begin｜>{''.join(written)}<｜tool▁calls▁end｜>"


def react_call(call: Call) -> str:
    return f"Thought: I call {call[0]}.\nAction: {call[0]}\nAction Input: {dumps(call[1])}"


@dataclass(frozen=True)
class Syntax:
    """One way to write a turn, and the format that reads it."""

    name: str
    format: str
    calls: Callable[[Sequence[Call]], str]
    say: Callable[[str], str] = lambda text: text
    think: Callable[[str], str] = lambda text: f"<think>{text}</think>"
    joint: str = "\n"
    thinks_for_ever: str = "<think>hm "
    marks: tuple[str, ...] = ()
    """Call syntax that no content may hold."""
    complete_at: str = ""
    """A call that ends here is complete, though the turn goes on; empty: at the end."""
    arguments: str = "json"
    """`json`: any JSON; `typed`: text that the schema types; `python`: literals; `query`: one text."""
    free_names: bool = field(default=False)
    """A name may be any text."""

    @property
    def parser(self) -> ToolParser:
        row = format_named(self.format)
        assert row is not None
        return row.parser()

    def turn(self, *parts: str) -> str:
        return self.joint.join(parts)

    def example(self, number: int = 1) -> Call:
        return ("search", {"query": f"query {number}"}) if self.arguments == "query" else ("calc", {"a": number})


def each(write: Callable[[Call], str], between: str = "\n") -> Callable[[Sequence[Call]], str]:
    return lambda calls: between.join(map(write, calls))


def harmony_call(call: Call) -> str:
    return f"<|channel|>commentary to=functions.{call[0]} <|constrain|>json<|message|>{dumps(call[1])}<|call|>"


def harmony_call_by_role(call: Call) -> str:
    return f" to=functions.{call[0]}<|channel|>commentary json<|message|>{dumps(call[1])}<|call|>"


def harmony(name: str, write: Callable[[Call], str]) -> Syntax:
    return Syntax(
        name,
        "gpt-oss",
        each(write, "<|start|>assistant"),
        say=lambda text: f"<|channel|>final<|message|>{text}<|end|>",
        think=lambda text: f"<|channel|>analysis<|message|>{text}<|end|>",
        thinks_for_ever="<|channel|>analysis<|message|>hm ",
        joint="<|start|>assistant",
        marks=("<|", "to=functions"),
        complete_at="}",
    )


def mistral_named(call: Call) -> str:
    return f"[TOOL_CALLS]{call[0]}[ARGS]{dumps(call[1])}"


SYNTAXES = [
    Syntax(
        "hermes",
        "hermes",
        each(lambda call: f"<tool_call>\n{json_call()(call)}\n</tool_call>"),
        marks=("<tool_call>", "</tool_call>"),
        free_names=True,
    ),
    Syntax("qwen3_coder", "qwen3_coder", each(qwen3_coder_call), marks=("<function", "tool_call>"), arguments="typed"),
    Syntax("llama3_json", "llama3_json", each(json_call("parameters"), "; "), marks=("{", ";"), free_names=True),
    Syntax(
        "llama3_json tag",
        "llama3",
        lambda calls: "<|python_tag|>" + each(json_call("parameters"), "; ")(calls),
        marks=("<|python_tag|>", "{"),
        free_names=True,
    ),
    Syntax("pythonic", "pythonic", pythonic_calls, marks=("[", "calc("), arguments="python"),
    Syntax(
        "pythonic tags",
        "pythonic",
        lambda calls: f"<|python_start|>{pythonic_calls(calls)}<|python_end|>",
        marks=("[", "<|python"),
        arguments="python",
        complete_at="]",
    ),
    Syntax(
        "mistral list",
        "mistral",
        lambda calls: f"[TOOL_CALLS][{', '.join(map(json_call(), calls))}]",
        think=lambda text: f"[THINK]{text}[/THINK]",
        thinks_for_ever="[THINK]",
        marks=("[TOOL_CALLS]",),
        free_names=True,
    ),
    Syntax("mistral names", "mistral", each(mistral_named, ""), marks=("[TOOL_CALLS]", "[ARGS]")),
    Syntax(
        "deepseek v3", "deepseek_v3", deepseek_v3_calls, marks=("<｜tool", "```"), complete_at="<｜tool▁call▁end｜>"
    ),
    Syntax("deepseek v3.1", "deepseek_v31", deepseek_v31_calls, marks=("<｜tool",), complete_at="<｜tool▁call▁end｜>"),
    Syntax("glm", "glm45", each(glm_call), marks=("<tool_call>", "arg_key"), arguments="typed"),
    Syntax("kimi_k2", "kimi_k2", kimi_calls, marks=("<|tool_call",), complete_at="<|tool_call_end|>"),
    harmony("gpt_oss", harmony_call),
    harmony("gpt_oss by role", harmony_call_by_role),
    Syntax("json", "json", each(json_call()), marks=("{",), free_names=True),
    Syntax(
        "json fence",
        "json",
        lambda calls: f"```json\n[{', '.join(map(json_call(), calls))}]\n```",
        marks=("{", "```"),
        complete_at="]",
        free_names=True,
    ),
    Syntax("react", "react", each(react_call), marks=("Action",)),
    Syntax(
        "search_r1",
        "search_r1",
        each(lambda call: f"<search>{call[1]['query']}</search>"),
        marks=("<search>", "</search>"),
        arguments="query",
    ),
]
