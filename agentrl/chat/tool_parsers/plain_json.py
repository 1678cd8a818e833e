"""Calls as bare JSON in the text, for prompts that ask for JSON without tags; and Llama 3's, which adds one tag.

`json`: an object, an array of them, or `{"tool_calls": [...]}`, in a code fence or not::

    {"name": "calculator", "arguments": {"expression": "6 * 7"}}

`llama3_json`: the same after `<|python_tag|>`, or without it; several are separated by `;`::

    <|python_tag|>{"name": "calculator", "parameters": {"expression": "6 * 7"}}
"""

from __future__ import annotations

import re
from typing import Any

from agentrl.chat.tool_parsers.json_calls import EXAMPLE, broken_end, decode, listed_calls, skip_space
from agentrl.chat.tool_parsers.scan import Block, CallError, ScanningParser, Source, tool_named

_OBJECT = r'\{\s*+"(?:(?:name|arguments|parameters|function|tool_calls)"\s*+:|type"\s*+:\s*+"function"\s*+[,}])'
_OPEN = rf"(?P<fence>```\w*+\s*+)?+(?P<value>(?:\[\s*+)?+{_OBJECT})"
_NEXT = re.compile(_OPEN)
_FENCE_END = re.compile(r"\s*+```")
_SEPARATOR = re.compile(r"\s*+[;,]?\s*+(?=[\[{])")
_TAG = r"<\|python_tag\|>"
_COMPLAINT = f"it is not valid JSON of the form {EXAMPLE}"


class JsonToolParser(ScanningParser):
    """Reads JSON objects that are shaped like calls, anywhere in the text; other JSON is text."""

    opener = _OPEN

    def read(self, source: Source, opener: re.Match[str]) -> Block:
        """One object or array."""
        start = opener.start("value")
        try:
            value, end = decode(source.text, start, _COMPLAINT)
        except CallError as error:
            end = broken_end(source, start, error.position, _NEXT)
            return Block(_after(source.text, end, opener), [str(error)])
        if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
            value = value["tool_calls"]
        if not any(_is_call(item, source) for item in (value if isinstance(value, list) else [value])):
            return Block(end, cut=False)
        return Block(_after(source.text, end, opener), listed_calls(value, source.text, start, end))


class Llama3JsonToolParser(JsonToolParser):
    """Reads what follows `<|python_tag|>`, and bare objects that are shaped like calls.

    Llama 4 puts `<|python_start|>` and `<|python_end|>` around text or calls; both tags are dropped.
    """

    opener = rf"(?P<tag>{_TAG})|(?P<around><\|python_(?:start|end)\|>)|{_OPEN}"
    _tag = re.compile(_TAG)

    def read(self, source: Source, opener: re.Match[str]) -> Block:
        """One object or array, or the tag before them."""
        if opener["around"]:
            return Block(opener.end())
        if not opener["tag"]:
            return super().read(source, opener)
        start = skip_space(source.text, opener.end())
        if _NEXT.match(source.text, start):
            return Block(start)
        following = source.search(self._tag, start)
        end = following.start() if following is not None else len(source.text)
        return Block(end, [f"<|python_tag|> is not followed by JSON of the form {EXAMPLE}"])


def _is_call(item: Any, source: Source) -> bool:
    """Whether an object is meant as a call: it has arguments or names an offered tool, and is not a tool's schema."""
    if not isinstance(item, dict):
        return False
    body = item["function"] if isinstance(item.get("function"), dict) else item
    if "description" in body:
        return False
    return "arguments" in body or "parameters" in body or tool_named(body.get("name"), source.tools) is not None


def _after(text: str, end: int, opener: re.Match[str]) -> int:
    """Past the code fence and the separator that follow a call."""
    closing = _FENCE_END.match(text, end) if opener["fence"] else None
    end = closing.end() if closing else end
    separator = _SEPARATOR.match(text, end)
    return separator.end() if separator else end
