"""Kimi K2's format: an identifier that holds the name, and JSON arguments, between special tokens.

<|tool_calls_section_begin|><|tool_call_begin|>functions.calculator:0<|tool_call_argument_begin|>{"expression": "6 * 7"}
<|tool_call_end|><|tool_calls_section_end|>
"""

from __future__ import annotations

import re

from agentrl.chat.tool_parsers.json_calls import Closing, named_call
from agentrl.chat.tool_parsers.scan import Block, ScanningParser, Source

_SECTION = r"<\|tool_calls?_section_(?:begin|end)\|>"
_OPEN, _CLOSE = r"<\|tool_call_begin\|>", r"<\|tool_call_end\|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_HEAD = re.compile(rf"\s*+(?P<id>[^<\n]{{1,200}}+){re.escape(_ARGUMENTS)}")
_NAME = re.compile(r"(?:functions\.)?(?P<name>.+?)(?::\d+)?", re.DOTALL)
_CLOSING = Closing(
    "<|tool_call_end|>", re.compile(rf"\s*+{_CLOSE}"), re.compile(f"(?P<close>{_CLOSE})|{_OPEN}|{_SECTION}")
)
_COMPLAINT = "its arguments are not a JSON object"


class KimiK2ToolParser(ScanningParser):
    """Reads calls and keeps their identifiers: the template shows each result under its call's."""

    opener = f"{_OPEN}|{_SECTION}"

    def read(self, source: Source, opener: re.Match[str]) -> Block:
        """One call, or the token that begins or ends the list of them."""
        if "section" in opener[0]:
            return Block(opener.end())
        head = _HEAD.match(source.text, opener.end())
        name = _NAME.fullmatch(head["id"].strip()) if head is not None else None
        if head is None or name is None:
            end = source.end_of_broken(_CLOSING.boundary, opener.end())
            return Block(end, [f"it has no {_ARGUMENTS} after functions.NAME:INDEX"])
        return _CLOSING.read(source, head.end(), _COMPLAINT, named_call(name["name"], name[0]))
