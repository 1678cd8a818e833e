"""The hermes format: JSON between tags, as Qwen and many others write it.

<tool_call>
{"name": "calculator", "arguments": {"expression": "6 * 7"}}
</tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from agentrl.interfaces import ToolParser
from agentrl.types import JsonDict, ParsedTurn, ToolCall

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_CALL = re.compile(f"{_OPEN}(.*?)(?:{_CLOSE}|(?={_OPEN})|$)", re.DOTALL)
_THINK_END = "</think>"
_EXAMPLE = '{"name": "...", "arguments": {...}}'


class HermesToolParser(ToolParser):
    """Reads `<tool_call>` blocks; a call inside closed thinking is a thought, not a call."""

    def parse(self, text: str, tools: Sequence[JsonDict] | None = None) -> ParsedTurn:
        """Split `text` into content, calls and errors, in the order in which they were written."""
        spoken_from = text.rfind(_THINK_END) + len(_THINK_END) if _THINK_END in text else 0
        spoken = text[spoken_from:]
        calls: list[ToolCall] = []
        errors: list[str] = []
        for match in _CALL.finditer(spoken):
            closed = match[0].endswith(_CLOSE)
            try:
                name, arguments = _read_call(match[1], closed)
            except ValueError as error:
                errors.append(f"Tool call {len(calls) + len(errors) + 1} was not run: {error}")
            else:
                calls.append(ToolCall(name, arguments, id=f"call_{len(calls)}"))
        content = text[:spoken_from] + _CALL.sub("", spoken) if calls or errors else text
        return ParsedTurn(content.strip(), calls, errors)


def _read_call(block: str, closed: bool) -> tuple[str, dict[str, Any]]:
    """Name and arguments of one block.

    Raises:
        ValueError: with what is wrong and what was expected, for the model to read.
    """
    call = _load(block, f"it is not valid JSON of the form {_EXAMPLE}")
    if not closed:
        raise ValueError(f"it has no closing {_CLOSE}")
    if not isinstance(call, dict):
        raise ValueError(f"it is a JSON {_kind(call)}, expected an object of the form {_EXAMPLE}")
    name = call.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f'it has no "name", expected {_EXAMPLE}')
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _load(arguments, 'its "arguments" are a string that is not a JSON object')
    if not isinstance(arguments, dict):
        raise ValueError(f'its "arguments" are a JSON {_kind(arguments)}, expected an object')
    return name, arguments


def _load(text: str, complaint: str) -> Any:
    try:
        return json.loads(text, strict=False, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(f"{complaint} (nested too deeply)") from None
    except ValueError as error:
        raise ValueError(f"{complaint} ({error})") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _kind(value: Any) -> str:
    names = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
