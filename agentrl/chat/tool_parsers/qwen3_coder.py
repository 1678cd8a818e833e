"""Qwen3-Coder's format: parameters between tags, typed by the tool's schema.

<tool_call>
<function=calculator>
<parameter=expression>
6 * 7
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import re

from agentrl.chat.tool_parsers.scan import Block, CallError, ScanningParser, Source
from agentrl.chat.tool_parsers.tagged_pairs import PairSyntax
from agentrl.chat.tool_parsers.typed_text import typed_arguments
from agentrl.types import ToolCall

_FUNCTION = re.compile(r"\s*+<function=([^<>\n]{1,200}+)>")
_KEY = r"<parameter=([^<>\n]{1,200}+)>"
_NEXT_KEY = r"<parameter=[^<>\n]{1,200}+>"
_END = r"</function>\s*+</tool_call>"
_WANTED = "<function=NAME> <parameter=KEY> VALUE </parameter> </function>"


def _pairs(end: str, another: str, wanted: str) -> PairSyntax:
    value_end = rf"</parameter>\s*+(?={_NEXT_KEY}|{end})"
    return PairSyntax(
        key=re.compile(_KEY),
        value_end=re.compile(value_end),
        end=re.compile(end),
        next_call=re.compile(another),
        wanted=wanted,
        line_end=re.compile(rf"\n{value_end}"),
    )


_WRAPPED = _pairs(_END, r"</tool_call>\s*+<tool_call>", f"<tool_call> {_WANTED} </tool_call>")
_BARE = _pairs("</function>", r"</function>\s*+<function=", _WANTED)
_WRAPPED_BOUNDARY = re.compile("(?P<close></tool_call>)|<tool_call>")
_BARE_BOUNDARY = re.compile("(?P<close></function>)|<tool_call>|<function=")


class Qwen3CoderToolParser(ScanningParser):
    """Reads `<function=...>` blocks, with `<tool_call>` around them or without."""

    opener = "<tool_call>|<function="

    def read(self, source: Source, opener: re.Match[str]) -> Block:
        """One block."""
        wrapped = opener[0] == "<tool_call>"
        pairs, boundary = (_WRAPPED, _WRAPPED_BOUNDARY) if wrapped else (_BARE, _BARE_BOUNDARY)
        start = opener.end() if wrapped else opener.start()
        function = _FUNCTION.match(source.text, start)
        if function is None:
            reason = f"it does not begin with <function=NAME>: expected {pairs.wanted}"
            return Block(source.end_of_broken(boundary, opener.end()), [reason])
        try:
            texts, end = pairs.read(source, function.end())
        except CallError as error:
            return Block(source.end_of_broken(boundary, error.position), [str(error)])
        name, span = function[1].strip(), (function.end(), source.text.rindex("</function>", function.end(), end))
        return Block(end, [ToolCall(name, typed_arguments(name, texts, source.tools), arguments_span=span)])
