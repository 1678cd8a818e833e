"""Calls as a Python list, as Llama 3.2 and 4 can write them.

[calculator(expression="6 * 7"), get_weather(city="Paris", days=3)]
"""

from __future__ import annotations

import re

from agentrl.chat.tool_parsers.python_literals import NAME, CallListReader
from agentrl.chat.tool_parsers.scan import Block, CallError, ScanningParser, Source, tool_named

_LIST = rf"\[\s*+(?P<name>{NAME})\("
_NEXT = re.compile(rf"(?P<close>\][ \t]*+$)|{_LIST}", re.MULTILINE)
_TAG_END = re.compile(r"\s*+(?:<\|python_end\|>|<\|tool_call_end\|>)")
_FORM = '[tool(name="text", other=1)]'


class PythonicToolParser(ScanningParser):
    """Reads lists of calls with named arguments, with or without `<|python_start|>` and `<|python_end|>` around."""

    opener = rf"(?P<line>^[ \t]*+)?+(?P<tag>(?:<\|python_start\|>|<\|tool_call_start\|>)\s*+)?+(?P<list>{_LIST})"

    def read(self, source: Source, opener: re.Match[str]) -> Block:
        """One list. A formula such as `[f(x)]` in a sentence is text, unless `f` is an offered tool."""
        reader = CallListReader(source.text, opener.start("list"))
        try:
            calls = reader.calls()
        except CallError as error:
            # Broken: a call that deserves a complaint, or no call at all? It is a call after a tag, with an offered
            # tool's name, or at the start of a line when no tools are known to compare with.
            unnamed = opener["line"] is not None and not source.tools
            if not (opener["tag"] or unnamed or tool_named(opener["name"], source.tools)):
                return Block(opener.end(), cut=False)
            end = source.end_of_broken(_NEXT, max(error.position, opener.end()))
            return Block(end, [f"{error}; the form is {_FORM}"])
        tag_end = _TAG_END.match(source.text, reader.position) if opener["tag"] else None
        return Block(tag_end.end() if tag_end else reader.position, calls)
