"""Tool calls in answers, as SGLang tells them: `/parse_function_call`, and chats with `--tool-call-parser`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import orjson
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from agentrl.chat.tool_parsers.formats import FORMATS, format_named
from agentrl.errors import UserInputError, suggest
from agentrl.inference.embedded.http import Handler, answer, read_object
from agentrl.types import JsonDict, ParsedTurn

NAMES = tuple(name for each in FORMATS for name in each.names)


def parse(text: str, parser: str, tools: Sequence[JsonDict] | None) -> ParsedTurn:
    """Split a text into content and calls.

    Raises:
        UserInputError: no parser of this name.
    """
    found = format_named(parser)
    if found is None:
        raise UserInputError(f"tool_call_parser: got '{parser}'." + suggest(parser, NAMES))
    return found.parser().parse(text, tools)


def tool_call_routes() -> dict[tuple[str, str], Handler]:
    """Handlers by method and path."""
    return {("POST", "/parse_function_call"): _parse_function_call}


async def _parse_function_call(request: HTTPRequest) -> Response:
    body = await read_object(request, ("text", "tools", "tool_call_parser"))
    text, parser, tools = body.get("text"), body.get("tool_call_parser"), body.get("tools")
    if not isinstance(text, str) or not isinstance(parser, str) or not isinstance(tools, list):
        raise UserInputError("wanted text (a text), tool_call_parser (a name) and tools (a list)")
    turn = parse(text, parser, tools)
    calls = [
        {"tool_index": _place(call.name, tools), "name": call.name, **_arguments(call)} for call in turn.tool_calls
    ]
    return answer({"normal_text": turn.content, "calls": calls})


def as_message(text: str, parser: str | None, tools: Sequence[JsonDict] | None) -> tuple[JsonDict, bool]:
    """An answer of a chat, and whether it calls tools."""
    turn = parse(text, parser, tools) if parser and tools else None
    if turn is None or not turn.tool_calls:
        return {"role": "assistant", "content": text}, False
    calls = [
        {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "index": index,
            "type": "function",
            "function": {"name": call.name, "arguments": _arguments(call)["parameters"]},
        }
        for index, call in enumerate(turn.tool_calls)
    ]
    return {"role": "assistant", "content": turn.content or None, "tool_calls": calls}, True


def _arguments(call: Any) -> JsonDict:
    return {"parameters": orjson.dumps(call.arguments).decode()}


def _place(name: str, tools: Sequence[Any]) -> int:
    """The number of a tool in the list; -1: it is not in it."""
    names = [tool.get("function", {}).get("name") for tool in tools if isinstance(tool, dict)]
    return names.index(name) if name in names else -1
