"""ReAct in plain text (Yao et al., 2022, arXiv:2210.03629).

Thought: I multiply.
Action: calculator
Action Input: {"expression": "6 * 7"}
"""

from __future__ import annotations

import re

from agentrl.chat.tool_parsers.json_calls import decode, read_arguments, skip_space
from agentrl.chat.tool_parsers.scan import Block, CallError, ScanningParser, Source, shown
from agentrl.chat.tool_parsers.typed_text import parameters_of, typed_arguments
from agentrl.errors import suggest
from agentrl.types import JsonDict, ToolCall

_SECTIONS = re.compile(r"^[ \t]*+(?:Thought|Action|Action Input|Observation|Final Answer):", re.MULTILINE)
_INPUT = re.compile(r"\s*+Action Input:\s*+(?P<fence>```\w*+\s*+)?+")
_JSON_AFTER = re.compile(r"[ \t]*+(?:\s*+```[ \t]*+)?+(?=\n|\Z)")
_COMPLAINT = "its Action Input is not one JSON object"


class ReactToolParser(ScanningParser):
    """Reads actions up to the first observation, which the model would be inventing, or the final answer."""

    opener = r"^[ \t]*+(?:Action:[ \t]*+(?P<name>[^\n]*+)|(?P<stop>Observation:|Final Answer:))"

    def read(self, source: Source, opener: re.Match[str]) -> Block:
        """One action, or the line that ends the turn."""
        # A bare `Observation:` at the end is where the engine stopped (a stop string): it is cut from the content.
        if opener["stop"]:
            dangling = opener["stop"] == "Observation:" and skip_space(source.text, opener.end()) == len(source.text)
            return Block(opener.end(), cut=dangling, last=True)
        name = opener["name"].strip()
        given = _INPUT.match(source.text, opener.end())
        if given is None or not name:
            if name and (unknown := _unknown(source, name)):
                return Block(opener.end(), [unknown])
            missing = "an 'Action Input:' line" if name else "the name of a tool"
            return Block(opener.end(), [f"its Action is not followed by {missing}"])
        following = source.search(_SECTIONS, given.end())
        end = following.start() if following is not None else len(source.text)
        try:
            arguments, given_to, end = _arguments(source, given, name, end)
        except CallError as error:
            return Block(end, [_unknown(source, name) or str(error)])
        return Block(end, [ToolCall(name, arguments, arguments_span=(given.end(), given_to))])


def _unknown(source: Source, name: str) -> str | None:
    """What to tell of an action that no tool has; its input cannot be judged, since any tool may have its own form."""
    known = [tool["function"]["name"] for tool in source.tools]
    return f"there is no tool named {shown(name)}.{suggest(name, known)}" if known and name not in known else None


def _arguments(source: Source, given: re.Match[str], name: str, end: int) -> tuple[JsonDict, int, int]:
    """Arguments as a JSON object, or as bare text for a tool with one parameter; where they and the action end."""
    text, start = source.text, given.end()
    properties = parameters_of(name, source.tools).get("properties") or {}
    single = next(iter(properties)) if len(properties) == 1 else None
    try:
        value, json_end = decode(text, start, _COMPLAINT)
        after = _JSON_AFTER.match(text, json_end)
        if after is None:
            raise CallError(f"{_COMPLAINT} (extra text after it: {shown(text[json_end:end].strip())})")
        if single is None or isinstance(value, dict):
            return read_arguments(value), json_end, after.end()
        if isinstance(value, str):
            return _of_single(single, value), json_end, after.end()
    except CallError:
        if single is None or text.startswith("{", start):
            raise
    bare = text[start:end].strip()
    if given["fence"]:
        bare = bare.removesuffix("```").rstrip()
    return typed_arguments(name, {single: bare}, source.tools), start + len(bare), end


def _of_single(argument: str, value: str) -> JsonDict:
    """A JSON string holds the tool's single argument, or an object that names the argument."""
    try:
        inner = read_arguments(value)
    except CallError:
        return {argument: value}
    return inner if argument in inner else {argument: value}
