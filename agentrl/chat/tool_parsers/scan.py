"""The walk through an assistant turn that all formats share.

Thinking is not searched for calls, calls are cut out, everything else is content. A format says what opens a call (a
regular expression) and how to read one there. Its patterns must be linear: runs are possessive or bounded, and every
search for an end goes through `Source.search`.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from agentrl.interfaces import ToolParser
from agentrl.types import JsonDict, ParsedTurn, ToolCall

_THINKING = {"<think>": "</think>", "[THINK]": "[/THINK]"}
_THINKING_ENDS = frozenset(_THINKING.values())
_THINKING_MARKS = "|".join(map(re.escape, [*_THINKING, *_THINKING_ENDS]))
_MOST_ERRORS = 32
"""Further broken calls of one turn are only counted: each explanation is a message that the model reads."""


class CallError(ValueError):
    """A call that cannot be read: what is wrong and what was wanted, for the model.

    Args:
        message: completes "Tool call 1 was not run: ...".
        position: how far the text was understood; the search for the end of the broken call begins there.
    """

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message)
        self.position = position


class Source:
    """The text of a turn, with searches that together read it once per pattern.

    A pattern's last result is remembered, so a thousand openers without an end cost one pass, not a thousand.
    """

    def __init__(self, text: str, tools: Sequence[JsonDict] | None) -> None:
        self.text = text
        self.tools = tools or ()
        self._found: dict[re.Pattern[str], tuple[int, re.Match[str] | None]] = {}

    def search(self, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
        """The first match at or after `start`."""
        # The text has `</search>` at 900 only. After search(p, 10) -> 900, search(p, 50) is answered from memory, since
        # nothing matches in 10..900; search(p, 950) has to look again. "No match after 10" answers every later start.
        since, match = self._found.get(pattern, (start + 1, None))
        if since <= start and (match is None or match.start() >= start):
            return match
        match = pattern.search(self.text, start)
        self._found[pattern] = (start, match)
        return match

    def end_of_broken(self, boundary: re.Pattern[str], start: int) -> int:
        """Where a broken call ends: after its closing tag (group `close`), before the next opener, or with the text."""
        match = self.search(boundary, start)
        if match is None:
            return len(self.text)
        return match.end() if match["close"] else match.start()


@dataclass(frozen=True, slots=True)
class Block:
    """What a format made of the text at an opener."""

    end: int
    """Where the walk continues."""
    found: Sequence[ToolCall | str] = ()
    """Calls, and one complaint for each that cannot be read, in order."""
    cut: bool = True
    """False: this turned out to be ordinary text and stays in the content."""
    last: bool = False
    """True: the rest of the turn holds no calls."""


class ScanningParser(ToolParser):
    """A format whose calls begin with something that can be searched for."""

    opener: ClassVar[str]
    """Regular expression for what begins a call."""
    call_id: ClassVar[str] = "call_{}"
    """Identifier of a call that was written without one."""
    _marks: ClassVar[re.Pattern[str]]

    def __init_subclass__(cls) -> None:
        cls._marks = re.compile(f"{_THINKING_MARKS}|{cls.opener}", re.MULTILINE)

    @abstractmethod
    def read(self, source: Source, opener: re.Match[str]) -> Block:
        """Read what begins with `opener`; in linear time over all openers of a text."""

    def parse(self, text: str, tools: Sequence[JsonDict] | None = None) -> ParsedTurn:
        """Split `text` into content, calls and errors, in the order in which they were written.

        Thinking lasts from `<think>` to `</think>`. If only the end is found, the prompt began it and everything before
        it is thinking; if only the beginning is found, everything after it is.
        """
        # "Let me see.</think>It is <tool_call>A</tool_call> done.", position by position:
        #   </think>     what was found and kept before it is thinking: start over, `kept_to` = 0
        #   <tool_call>  keep "Let me see.</think>It is ", cut A out, `kept_to` = after </tool_call>
        # and " done." is kept at the end. Thinking stays in the content as it was written.
        source = Source(text, tools)
        found: list[ToolCall | str] = []
        kept: list[str] = []
        position = kept_to = 0
        finished = False
        while match := self._marks.search(text, position):
            mark, position = match[0], match.end()
            if mark in _THINKING_ENDS:
                found, kept, kept_to, finished = [], [], 0, False
            elif mark in _THINKING:
                end = text.find(_THINKING[mark], position)
                if end < 0:
                    break
                position = end + len(_THINKING[mark])
            elif not finished:
                block = self.read(source, match)
                position, finished = max(position, block.end), block.last
                if block.cut:
                    kept.append(text[kept_to : match.start()])
                    kept_to = position
                    found += block.found
        return parsed_turn("".join([*kept, text[kept_to:]]), found, self.call_id)


def parsed_turn(content: str, found: Sequence[ToolCall | str], call_id: str = "call_{}") -> ParsedTurn:
    """Number the calls and the errors of a turn."""
    calls: list[ToolCall] = []
    errors: list[str] = []
    for number, item in enumerate(found, start=1):
        if isinstance(item, ToolCall):
            calls.append(item if item.id else replace(item, id=call_id.format(len(calls))))
        else:
            errors.append(f"Tool call {number} was not run: {item}")
    if len(errors) > _MOST_ERRORS:
        errors[_MOST_ERRORS:] = [f"{len(errors) - _MOST_ERRORS} more tool calls were not run: they cannot be read."]
    return ParsedTurn(content.strip(), calls, errors)


def tool_named(name: Any, tools: Sequence[JsonDict]) -> JsonDict | None:
    """The schema of the offered tool with this name; None if no such tool is offered."""
    return next((tool for tool in tools if tool["function"]["name"] == name), None)


def shown(text: str, most: int = 60) -> str:
    """A piece of what the model wrote, short enough for a message."""
    return repr(text if len(text) <= most else text[:most] + "...")
