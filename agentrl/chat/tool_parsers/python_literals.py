"""Reads a list of calls in Python syntax, `[name(key=value, ...), ...]`, out of a text; nothing is ever evaluated."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any

from agentrl.chat.tool_parsers.scan import CallError, shown
from agentrl.types import JsonDict, ToolCall

NAME = r"[^\W\d][\w.\-/]{0,200}+"
_NAME = re.compile(NAME)
_KEY = re.compile(r"([^\s=(),\[\]{}\"']{1,200}+)\s*+=(?!=)")
_SPACE = re.compile(r"(?:\s|#[^\n]*+)*+")
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*+(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+(?!\w)")
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_WORD = re.compile(r"\w++")
_STRING = re.compile(
    r"""(?P<raw>[rR]?)(?:\"{3}(?P<a>(?:[^\\"]|\\.|"(?!""))*+)\"{3}|'{3}(?P<b>(?:[^\\']|\\.|'(?!''))*+)'{3}"""
    r"""|"(?P<c>(?:[^\\"]|\\.)*+)"|'(?P<d>(?:[^\\']|\\.)*+)')""",
    re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^{}]{1,100}+\}|[0-7]{1,3}|.)", re.DOTALL
)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\n": ""}
_SIMPLE |= {char: char for char in "\\'\""}
_MOST_NESTED = 64


class CallListReader:
    """A recursive-descent reader of one list; `position` is the next character to read.

    Args:
        text: the turn.
        position: of the opening bracket.
    """

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self.position = position
        self._depth = 0

    def calls(self) -> list[ToolCall]:
        """The calls of the list; `position` is then after its closing bracket.

        Raises:
            CallError: the text is not a list of calls with named arguments.
        """
        return self._sequence("[", "]", self._call)

    def _call(self) -> ToolCall:
        name = _NAME.match(self._text, self.position)
        if name is None:
            raise self._unexpected("the name of a tool")
        self.position = name.end()
        self._space()
        start = self.position + 1
        arguments: JsonDict = {}
        for key, value in self._sequence("(", ")", lambda: self._argument(name[0])):
            if key in arguments:
                raise CallError(f"{name[0]} gets the argument {shown(key)} twice", self.position)
            arguments[key] = value
        return ToolCall(name[0], arguments, arguments_span=(start, self.position - 1))

    def _argument(self, name: str) -> tuple[str, Any]:
        key = _KEY.match(self._text, self.position)
        if key is None:
            raise CallError(f"an argument of {name} has no name: write {name}(name=value)", self.position)
        self.position = key.end()
        return key[1], self._value()

    def _value(self) -> Any:
        self._space()
        first = self._text[self.position : self.position + 1]
        if first == "[":
            return self._sequence("[", "]", self._value)
        if first == "(":
            return self._sequence("(", ")", self._value)
        if first == "{":
            return dict(self._sequence("{", "}", self._pair))
        for pattern, read in ((_STRING, self._strings), (_NUMBER, _number)):
            match = pattern.match(self._text, self.position)
            if match is not None:
                self.position = match.end()
                return self._or_error(read, match)
        word = _WORD.match(self._text, self.position)
        if word is None or word[0] not in _WORDS:
            raise self._unexpected("a value (a text needs quotes)")
        self.position = word.end()
        return _WORDS[word[0]]

    def _pair(self) -> tuple[str, Any]:
        key = self._value()
        if not isinstance(key, str):
            raise CallError(f"a key of a dictionary has to be a text, got {shown(str(key))}", self.position)
        self._space()
        if not self._text.startswith(":", self.position):
            raise self._unexpected("':'")
        self.position += 1
        return key, self._value()

    def _strings(self, match: re.Match[str]) -> str:
        """A string, joined with those that follow it without a comma, as in Python."""
        parts = [_unquoted(match)]
        while following := _STRING.match(self._text, self._skip(self.position)):
            self.position = following.end()
            parts.append(_unquoted(following))
        return "".join(parts)

    def _sequence(self, opening: str, closing: str, read: Any) -> list[Any]:
        if not self._text.startswith(opening, self.position):
            raise self._unexpected(f"'{opening}'")
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise CallError("it is nested too deeply", self.position)
        self.position += 1
        items: list[Any] = []
        while True:
            self._space()
            if self._text.startswith(closing, self.position):
                break
            if items and not self._comma():
                raise self._unexpected(f"',' or '{closing}'")
            if self._text.startswith(closing, self.position):
                break
            items.append(read())
        self.position += 1
        self._depth -= 1
        return items

    def _comma(self) -> bool:
        found = self._text.startswith(",", self.position)
        self.position += found
        self._space()
        return found

    def _or_error(self, read: Any, match: re.Match[str]) -> Any:
        try:
            return read(match)
        except ValueError as error:
            raise CallError(f"{shown(match[0])} cannot be read: {error}", self.position) from None

    def _space(self) -> None:
        self.position = self._skip(self.position)

    def _skip(self, position: int) -> int:
        match = _SPACE.match(self._text, position)
        return match.end() if match else position

    def _unexpected(self, wanted: str) -> CallError:
        there = self._text[self.position : self.position + 20]
        return CallError(f"expected {wanted}, got {shown(there) if there else 'the end'}", self.position)


def _number(match: re.Match[str]) -> int | float:
    digits = match[0].replace("_", "")
    if digits.lstrip("+-").isdigit():
        return int(digits)
    value = float(digits)
    if math.isinf(value):
        raise ValueError("it is too large")
    return value


def _unquoted(match: re.Match[str]) -> str:
    body = next(match[key] for key in "abcd" if match[key] is not None)
    if match["raw"] or "\\" not in body:
        return body
    text = _ESCAPE.sub(_unescape, body)
    return text.encode("utf-16", "surrogatepass").decode("utf-16")  # "\ud83d\ude00" is one character, 😀


def _unescape(match: re.Match[str]) -> str:
    code = match[0][1:]
    if code in _SIMPLE:
        return _SIMPLE[code]
    if code[0] in "xuU" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code[0] == "N" and len(code) > 1:
        try:
            return unicodedata.lookup(code[2:-1])
        except KeyError:
            return match[0]
    return chr(int(code, 8)) if code[0] in "01234567" else match[0]
