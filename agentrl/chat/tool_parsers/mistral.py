"""Mistral's formats: JSON after `[TOOL_CALLS]`, as one list or, in newer models, after each call's name.

[TOOL_CALLS][{"name": "calculator", "arguments": {"expression": "6 * 7"}}]

[TOOL_CALLS]calculator[ARGS]{"expression": "6 * 7"}
"""

from __future__ import annotations

import re

from agentrl.chat.tool_parsers.json_calls import EXAMPLE, broken_end, decode, listed_calls, named_call, skip_space
from agentrl.chat.tool_parsers.scan import Block, CallError, ScanningParser, Source

_OPEN = r"\[TOOL_CALLS\]"
_NEXT = re.compile(_OPEN)
_NAME = re.compile(
    r"(?P<name>[^\s\[\]{}][^\[\]{}\n]{0,200}+)(?:\[CALL_ID\](?P<id>[^\[\]{}\n]{1,200}+))?+(?:\[ARGS\])?+\s*+(?=\{)"
)
_COMPLAINT = f"what follows [TOOL_CALLS] is neither NAME[ARGS]{{...}} nor valid JSON of the form [{EXAMPLE}]"


class MistralToolParser(ScanningParser):
    """Reads both styles; identifiers are nine letters and digits long, as Mistral's templates want them."""

    opener = _OPEN
    call_id = "call{:05d}"

    def read(self, source: Source, opener: re.Match[str]) -> Block:
        """What follows one `[TOOL_CALLS]`."""
        start = skip_space(source.text, opener.end())
        named = _NAME.match(source.text, start)
        start = named.end() if named is not None else start
        try:
            value, end = decode(source.text, start, _COMPLAINT)
        except CallError as error:
            return Block(broken_end(source, start, error.position, _NEXT), [str(error)])
        make = named_call(named["name"].strip(), named["id"] or "") if named is not None else listed_calls
        return Block(end, make(value, source.text, start, end) or ["the list after [TOOL_CALLS] is empty"])
