"""JSON as models write it: a value in the middle of a text, and the calls and arguments in it."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from agentrl.chat.tool_parsers.scan import Block, CallError, Source, shown
from agentrl.types import JsonDict, ToolCall

EXAMPLE = '{"name": "...", "arguments": {...}}'
SPACE = re.compile(r"\s*+")

_OBJECT = f"an object of the form {EXAMPLE}"
_ARGUMENTS_KEY = re.compile(r'"(?:arguments|parameters)"\s*+:\s*+')
_MOST_KEYS = 8
_MOST_NESTED = 100

_FIRST_WINDOW = 2048
_CUT_TOKEN = 16
"""A token that is cut by the end of a window begins at most this many characters before it."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_NESTING = re.compile(r'[\[{\s":,\w]*+')
_TOKEN = re.compile(r'"(?:[^"\\]|\\.?)*+(?:"|\Z)|[\[{]|[\]}]', re.DOTALL)


def decode(text: str, start: int, complaint: str) -> tuple[Any, int]:
    """The JSON value at `start` (after white space) and where it ends; raw newlines in strings are accepted.

    The decoder sees a window that grows until it holds the value, so a failure costs what was read, not the length of
    the text.

    Raises:
        CallError: `complaint` with the reason.
    """
    # json's errors count line numbers from the start of the string: in a text with 1,000 broken calls each error would
    # cost a pass over the text before it. Windows of 2,048, 4,096, ... characters keep that linear.
    start = skip_space(text, start)
    size = _FIRST_WINDOW
    while True:
        window = text[start : start + size]
        whole = start + size >= len(text)
        try:
            value, end = _DECODER.raw_decode(window)
        except json.JSONDecodeError as error:
            # An error at the end of a window may only mean that the window cut the value: `fal|se`, `"a long te|xt"`.
            cut = error.pos >= len(window) - _CUT_TOKEN or error.msg.startswith("Unterminated string")
            if whole or not cut:
                raise CallError(f"{complaint} ({error})", start + error.pos) from None
        except RecursionError:
            nested = _NESTING.match(window)
            raise CallError(f"{complaint} (nested too deeply)", start + (nested.end() if nested else 0)) from None
        except ValueError as error:
            raise CallError(f"{complaint} ({error})", start) from None
        else:
            # A value that ends exactly with the window may go on after it: `12|34`.
            if whole or end < len(window):
                _check_depth(value, window, end, complaint, start)
                _check_characters(value, window, end, complaint, start)
                return value, start + end
        size *= 2


Make = Callable[[Any, str, int, int], list[ToolCall | str]]
"""A JSON value, the text, and where the value begins and ends in it -> its calls, or why they cannot be read."""


@dataclass(frozen=True, slots=True)
class Closing:
    """What ends a JSON value between tags."""

    tag: str
    """The tag, for messages."""
    closed: re.Pattern[str]
    """What must follow the value."""
    boundary: re.Pattern[str]
    """Where a broken call ends: a closing tag (group `close`), or the next opener."""

    def read(self, source: Source, start: int, complaint: str, make: Make) -> Block:
        """The block whose JSON value begins at `start`."""
        start = skip_space(source.text, start)
        try:
            value, end = decode(source.text, start, complaint)
        except CallError as error:
            return Block(source.end_of_broken(self.boundary, max(error.position, start)), [str(error)])
        closed = self.closed.match(source.text, end)
        if closed is not None:
            return Block(closed.end(), make(value, source.text, start, end))
        stop = source.search(self.boundary, end)
        extra = source.text[end : stop.start()].strip() if stop is not None and stop["close"] else ""
        reason = f"{complaint} (extra text after it: {shown(extra)})" if extra else f"it has no closing {self.tag}"
        return Block(source.end_of_broken(self.boundary, end), [reason])


def listed_calls(value: Any, text: str, start: int, end: int) -> list[ToolCall | str]:
    """The calls in JSON that is one call or a list of them, or why one cannot be read; `text[start:end]` holds it."""
    found: list[ToolCall | str] = []
    for item in value if isinstance(value, list) else [value]:
        try:
            call = call_of(item)
        except CallError as error:
            found.append(str(error))
            continue
        span = _arguments_span(call, text, start, end)
        found.append(replace(call, arguments_span=span))
        start = span[1]
    return found


def single_call(value: Any, text: str, start: int, end: int) -> list[ToolCall | str]:
    """As `listed_calls`, but a list is a mistake."""
    return (
        [f"it is a JSON array, expected {_OBJECT}"]
        if isinstance(value, list)
        else listed_calls(value, text, start, end)
    )


def named_call(name: str, identifier: str = "") -> Make:
    """A `Make` for formats that write a call's name before its arguments."""

    def make(value: Any, text: str, start: int, end: int) -> list[ToolCall | str]:
        try:
            return [ToolCall(name, read_arguments(value), identifier, (start, end))]
        except CallError as error:
            return [str(error)]

    return make


def call_of(value: Any) -> ToolCall:
    """The call that a JSON value describes; `parameters` stands for `arguments`, and `function` may hold both.

    Raises:
        CallError: with what is wrong and what was expected.
    """
    if not isinstance(value, dict):
        raise CallError(f"it is a JSON {json_kind(value)}, expected {_OBJECT}")
    identifier = value.get("id")
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise CallError(f'it has no "name", expected {_OBJECT}')
    given = value["arguments"] if "arguments" in value else value.get("parameters", {})
    if not {"arguments", "parameters"} & {*value} and {*value} - {"name", "type", "id"}:
        raise CallError(f'it has no "arguments", expected {_OBJECT}')
    return ToolCall(name, read_arguments(given), id=identifier if isinstance(identifier, str) else "")


def read_arguments(value: Any) -> JsonDict:
    """The arguments of a call: an object, or a string that holds one.

    Raises:
        CallError: they are neither.
    """
    if isinstance(value, str):
        if not value.strip():
            return {}
        complaint = 'its "arguments" are a string that is not a JSON object'
        inner, end = decode(value, 0, complaint)
        if value[end:].strip():
            raise CallError(f"{complaint} (extra text after it: {shown(value[end:].strip())})")
        value = inner
    if not isinstance(value, dict):
        raise CallError(f'its "arguments" are a JSON {json_kind(value)}, expected an object')
    return value


def json_kind(value: Any) -> str:
    """The JSON word for a value's type."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def skip_space(text: str, start: int) -> int:
    """The next position that is not white space."""
    match = SPACE.match(text, start)
    return match.end() if match else start


def broken_end(source: Source, start: int, understood: int, opener: re.Pattern[str]) -> int:
    """Where broken JSON without a closing tag ends: where its brackets balance, else before the next opener."""
    # {"name": "f", "arguments": {"x": }} and more text
    # 1                          2     10    <- depth after each bracket: the call ends where it is 0
    # Brackets inside strings do not count: `_TOKEN` reads a whole string as one token.
    following = source.search(opener, max(understood, start + 1))
    stop = following.start() if following is not None else len(source.text)
    depth = 0
    for token in _TOKEN.finditer(source.text, start, stop):
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
            if depth <= 0:
                return token.end()
    return stop


def _arguments_span(call: ToolCall, text: str, start: int, end: int) -> tuple[int, int]:
    """Where the arguments of a call are in the JSON that describes it; an empty span if it has none."""
    # The JSON may hold the word "arguments" more than once (as an argument's own name, for example): take the first
    # place whose value is what the call has.
    for key in itertools.islice(_ARGUMENTS_KEY.finditer(text, start, end), _MOST_KEYS):
        try:
            value, stop = decode(text, key.end(), "")
            if read_arguments(value) == call.arguments:
                return key.end(), stop
        except CallError:
            continue
    return end, end


def _check_depth(value: Any, window: str, end: int, complaint: str, start: int) -> None:
    """Refuse values that are nested so deeply that tools could not write them as JSON again."""
    # Counting brackets is cheap and never too low, so the exact depth is computed only for suspicious values.
    if window.count("[", 0, end) + window.count("{", 0, end) <= _MOST_NESTED:
        return
    level = [value]
    for _ in range(_MOST_NESTED):
        inner = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = list(itertools.chain.from_iterable(inner))
    if any(isinstance(item, dict | list) for item in level):
        raise CallError(f"{complaint} (nested too deeply)", start + end)


def _check_characters(value: Any, window: str, end: int, complaint: str, start: int) -> None:
    """Refuse escapes that are half of a surrogate pair: text with one cannot be encoded."""
    if not _SURROGATE.search(window, 0, end):
        return
    for text in _strings(value):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):04x}"
            raise CallError(f"{complaint} ({half} is half of a surrogate pair)", start + end) from None


def _strings(value: Any) -> Iterator[str]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            stack += item


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:40]} is too large")
    return value


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant, parse_float=_finite)
