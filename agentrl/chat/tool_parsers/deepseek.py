"""DeepSeek's formats: a name and JSON arguments between special tokens.

V3 and R1::

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>calculator
    ```json
    {"expression": "6 * 7"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3.1::

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>calculator<｜tool▁sep｜>{"expression": "6 * 7"}<｜tool▁call▁end｜>
    <｜tool▁calls▁end｜>
"""

from __future__ import annotations

import re

from agentrl.chat.tool_parsers.json_calls import Closing, named_call
from agentrl.chat.tool_parsers.scan import Block, ScanningParser, Source

_SECTION = "<｜tool▁calls▁begin｜>|<｜tool▁calls▁end｜>"
_OPEN, _SEPARATOR, _CLOSE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_HEAD = re.compile(rf"\s*+(?P<head>[^<\n]{{1,200}}+){_SEPARATOR}")
_FENCE = re.compile(r"\s*+(?P<name>[^\s{`][^\n`]{0,200}+)?+\s*+```(?:json)?+")
_CLOSING = Closing(
    _CLOSE,
    re.compile(rf"\s*+(?:```)?+\s*+(?:{_CLOSE}|(?=<｜tool▁calls▁end｜>))"),
    re.compile(f"(?P<close>{_CLOSE})|{_OPEN}|{_SECTION}"),
)
_COMPLAINT = "its arguments are not a JSON object"


class DeepSeekToolParser(ScanningParser):
    """Reads both styles; a call's style shows in the text between the separator and the arguments."""

    opener = f"{_OPEN}|{_SECTION}"

    def read(self, source: Source, opener: re.Match[str]) -> Block:
        """One call, or the token that begins or ends the list of them."""
        if opener[0] != _OPEN:
            return Block(opener.end())
        head = _HEAD.match(source.text, opener.end())
        if head is None:
            end = source.end_of_broken(_CLOSING.boundary, opener.end())
            return Block(end, [f"it has no {_SEPARATOR} after the tool's name"])
        # V3: head "function", then "calculator\n```json" before the arguments. V3.1: head "calculator", then arguments.
        fence = _FENCE.match(source.text, head.end())
        name = fence["name"] if fence is not None and fence["name"] else head["head"]
        start = fence.end() if fence is not None else head.end()
        return _CLOSING.read(source, start, _COMPLAINT, named_call(name.strip()))
