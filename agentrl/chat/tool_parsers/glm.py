"""GLM's format (4.5 and later): a name and pairs of tags, typed by the tool's schema.

<tool_call>calculator
<arg_key>expression</arg_key>
<arg_value>6 * 7</arg_value>
</tool_call>
"""

from __future__ import annotations

import re

from agentrl.chat.tool_parsers.scan import Block, CallError, ScanningParser, Source
from agentrl.chat.tool_parsers.tagged_pairs import PairSyntax
from agentrl.chat.tool_parsers.typed_text import typed_arguments
from agentrl.types import ToolCall

_CLOSE = "</tool_call>"
_NAME = re.compile(r"\s*+([^\s<{\[][^<\n]{0,200}+)")
_PAIRS = PairSyntax(
    key=re.compile(r"<arg_key>([^<]{1,200}+)</arg_key>\s*+<arg_value>"),
    value_end=re.compile(r"</arg_value>\s*+(?=<arg_key>|</tool_call>)"),
    end=re.compile(_CLOSE),
    next_call=re.compile(rf"{_CLOSE}\s*+<tool_call>"),
    wanted="<tool_call>NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> </tool_call>",
)
_BOUNDARY = re.compile(f"(?P<close>{_CLOSE})|<tool_call>")


class GlmToolParser(ScanningParser):
    """Reads `<tool_call>` blocks of a name and its pairs."""

    opener = "<tool_call>"

    def read(self, source: Source, opener: re.Match[str]) -> Block:
        """One block."""
        name = _NAME.match(source.text, opener.end())
        if name is None:
            reason = f"it does not begin with the name of a tool: expected {_PAIRS.wanted}"
            return Block(source.end_of_broken(_BOUNDARY, opener.end()), [reason])
        try:
            texts, end = _PAIRS.read(source, name.end())
        except CallError as error:
            return Block(source.end_of_broken(_BOUNDARY, error.position), [str(error)])
        called = name[1].strip()
        arguments = typed_arguments(called, texts, source.tools)
        return Block(end, [ToolCall(called, arguments, arguments_span=(name.end(), end - len(_CLOSE)))])
