"""The harmony format of gpt-oss: messages on channels, with calls addressed to a function.

<|channel|>analysis<|message|>I multiply.<|end|><|start|>assistant<|channel|>commentary to=functions.calculator
<|constrain|>json<|message|>{"expression": "6 * 7"}<|call|>
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from agentrl.chat.tool_parsers.json_calls import decode, named_call, skip_space
from agentrl.chat.tool_parsers.scan import CallError, Source, parsed_turn, shown
from agentrl.interfaces import ToolParser
from agentrl.types import JsonDict, ParsedTurn, ToolCall

_START = "<|start|>assistant"
_HEADER = re.compile(
    r"(?P<role><\|start\|>[^<]{0,300}+)?+(?P<channel><\|channel\|>[^<]{0,300}+)?+(?:<\|constrain\|>[^<]{0,100}+)?+"
    r"<\|message\|>"
)
_CHANNEL = re.compile(r"<\|channel\|>\s*+(\w++)")
_RECIPIENT = re.compile(r"\bto=([^\s<]++)")
_END = re.compile(r"<\|(?:end|call|return)\|>")
_NEXT = re.compile(r"<\|(?:end|call|return|start|channel)\|>")
_MARK = re.compile(r"<\|(?:start\|>(?:assistant)?|(?:channel|constrain)\|>\w*+|(?:message|end|call|return)\|>)")
_UNFINISHED = re.compile(r"<\|start\|>assistant\s*+to=functions\.|<\|channel\|>[^<]{0,300}?\bto=")
_PEOPLE = frozenset({"user", "assistant", "all"})
_COMPLAINT = "its arguments are not a JSON object"


class GptOssToolParser(ToolParser):
    """Reads messages to functions as calls; text on channels other than `analysis` is content."""

    def parse(self, text: str, tools: Sequence[JsonDict] | None = None) -> ParsedTurn:
        """Split a turn into its messages. The prompt ends with `<|start|>assistant`, so the first one lacks that."""
        # <|channel|>analysis<|message|>I multiply.<|end|>          thought: left out
        # <|channel|>commentary to=functions.f<|message|>{...}     call
        # <|channel|>final<|message|>It is 42.                     content
        source = Source(text if text.startswith("<|start|>") else _START + text, tools)
        found: list[ToolCall | str] = []
        said: list[str] = []
        position = 0
        while header := _HEADER.search(source.text, position):
            said.append(source.text[position : header.start()])
            channel = _CHANNEL.search(header[0])
            recipient = _RECIPIENT.search(header[0])
            thought = channel is not None and channel[1] == "analysis"
            if recipient is not None and recipient[1] not in _PEOPLE and not (thought and _is_thought(source, header)):
                calls, position = _read_call(source, recipient[1].removeprefix("functions."), header.end())
                found += calls
            elif thought:
                end = source.text.find("<|end|>", header.end())
                position = end + len("<|end|>") if end >= 0 else len(source.text)
            else:
                body = source.search(_NEXT, header.end())
                position = body.start() if body is not None else len(source.text)
                said.append(source.text[header.end() : position])
        unfinished = _UNFINISHED.search(source.text, position)
        said.append(source.text[position : unfinished.start() if unfinished is not None else None])
        if unfinished is not None:
            found.append(
                "its message is not finished: expected <|channel|>commentary to=functions.NAME<|message|>{...}"
            )
        added = len(source.text) - len(text)
        return parsed_turn("".join(_MARK.sub("", piece) for piece in said), [_moved(item, -added) for item in found])


def _is_thought(source: Source, header: re.Match[str]) -> bool:
    """Whether a message on the analysis channel ends with `<|end|>`; a call ends the turn or ends with `<|call|>`."""
    end = source.search(_END, header.end())
    return end is not None and end[0] == "<|end|>"


def _read_call(source: Source, name: str, start: int) -> tuple[list[ToolCall | str], int]:
    """The call in a message to a function, or why it cannot be read, and where the message ends."""
    start = skip_space(source.text, start)
    try:
        value, end = decode(source.text, start, _COMPLAINT)
    except CallError as error:
        stop = source.search(_NEXT, max(error.position, start))
        return [str(error)], stop.start() if stop is not None else len(source.text)
    stop = source.search(_NEXT, end)
    after = stop.start() if stop is not None else len(source.text)
    extra = source.text[end:after].strip()
    if extra:
        return [f"{_COMPLAINT} (extra text after it: {shown(extra)})"], after
    return named_call(name)(value, source.text, start, end), after


def _moved(item: ToolCall | str, by: int) -> ToolCall | str:
    """Undo the shift caused by the text that was put before the turn."""
    if isinstance(item, str) or item.arguments_span is None:
        return item
    start, end = item.arguments_span
    return replace(item, arguments_span=(start + by, end + by))
