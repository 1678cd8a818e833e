"""Arguments written as pairs of a name and a text between tags (qwen3_coder, glm)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentrl.chat.tool_parsers.json_calls import skip_space
from agentrl.chat.tool_parsers.scan import CallError, Source, shown


@dataclass(frozen=True, slots=True)
class PairSyntax:
    """How a format writes its pairs.

    A value may hold its own closing tag; the one that ends it is followed by the next pair or the end of the call.
    """

    key: re.Pattern[str]
    """What comes before a value; group 1 is the argument's name."""
    value_end: re.Pattern[str]
    end: re.Pattern[str]
    """What comes after the last pair."""
    next_call: re.Pattern[str]
    """The end of one call and the beginning of another. No value holds this; a value that reaches it has no end."""
    wanted: str
    """The syntax, for messages."""
    line_end: re.Pattern[str] | None = None
    """End of a value on lines of its own; its first and last newline are not part of it."""

    def read(self, source: Source, position: int) -> tuple[dict[str, str], int]:
        """The pairs from `position` on, and where the call ends.

        Raises:
            CallError: the text is neither a pair nor the end of the call.
        """
        pairs: dict[str, str] = {}
        while True:
            position = skip_space(source.text, position)
            end = self.end.match(source.text, position)
            if end is not None:
                return pairs, end.end()
            key = self.key.match(source.text, position)
            if key is None:
                there = source.text[position : position + 40]
                raise CallError(f"expected {self.wanted}, got {shown(there) if there else 'the end'}", position)
            pairs[key[1]], position = self._value(source, key)

    def _value(self, source: Source, key: re.Match[str]) -> tuple[str, int]:
        # <parameter=code>\nprint("</parameter>")\n</parameter>\n<parameter=...: the first closing tag is inside the
        # value, because no pair and no end of the call follows it; `value_end` matches the second.
        start = key.end()
        lines = self.line_end if source.text.startswith("\n", start) else None
        end = (source.search(lines, start) if lines is not None else None) or source.search(self.value_end, start)
        another = source.search(self.next_call, start)
        if end is None or (another is not None and another.start() < end.start()):
            raise CallError(f"argument {shown(key[1])} has no end: expected {self.wanted}", start)
        first = start if lines is None else start + 1
        return source.text[first : max(first, end.start())], end.end()
