"""The hermes format: JSON between tags, as Qwen and many others write it.

<tool_call>
{"name": "calculator", "arguments": {"expression": "6 * 7"}}
</tool_call>
"""

from __future__ import annotations

import re

from agentrl.chat.tool_parsers.json_calls import EXAMPLE, Closing, single_call
from agentrl.chat.tool_parsers.scan import Block, ScanningParser, Source

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_CLOSING = Closing(_CLOSE, re.compile(rf"(?:\s*+{_CLOSE})++"), re.compile(f"(?P<close>{_CLOSE})|{_OPEN}"))
_COMPLAINT = f"it is not valid JSON of the form {EXAMPLE}"


class HermesToolParser(ScanningParser):
    """Reads `<tool_call>` blocks of one JSON object each; a tag inside a JSON string is text."""

    opener = _OPEN

    def read(self, source: Source, opener: re.Match[str]) -> Block:
        """One block."""
        return _CLOSING.read(source, opener.end(), _COMPLAINT, single_call)
