"""Values written as plain text, read as the type that the tool's schema asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.chat.tool_parsers.json_calls import decode, json_kind
from agentrl.chat.tool_parsers.scan import CallError, tool_named
from agentrl.types import JsonDict

_PYTHON_WORDS = {"True": True, "False": False, "None": None}
_MOST_REFERENCES = 16
_NOTHING = object()


def typed_arguments(name: str, texts: Mapping[str, str], tools: Sequence[JsonDict]) -> JsonDict:
    """Each argument of a call with the type that its tool's schema gives; without one, JSON is read as JSON."""
    schema = parameters_of(name, tools)
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    return {key: typed(text, accepted_types(known.get(key), schema)) for key, text in texts.items()}


def parameters_of(name: str, tools: Sequence[JsonDict]) -> JsonDict:
    """The schema of a tool's arguments; empty for an unknown tool."""
    tool = tool_named(name, tools)
    parameters = tool["function"].get("parameters") if tool is not None else None
    return parameters if isinstance(parameters, dict) else {}


def typed(text: str, types: frozenset[str]) -> Any:
    """The value that a text stands for among JSON `types` (empty: any); the schema check refuses what fits none."""
    # "42" is the text "42" for a string, 42 for an integer or an unknown type; "4.0" is 4 for an integer; "abc" stays a
    # text, and the tool's schema then tells the model what was wanted.
    if types == {"string"}:
        return text
    value = _value_of(text)
    if value is _NOTHING:
        return text
    kinds = {json_kind(value)}
    if kinds == {"number"} and (isinstance(value, int) or value.is_integer()):
        kinds.add("integer")
    if not types or types & kinds:
        whole = isinstance(value, float) and "integer" in types & kinds and "number" not in types
        return int(value) if whole else value
    return text if "string" in types else value


def accepted_types(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """JSON types that a schema accepts, as far as it shows them; empty: any."""
    if not isinstance(schema, Mapping) or depth > _MOST_REFERENCES:
        return frozenset()
    if isinstance(schema.get("$ref"), str):
        return accepted_types(_referenced(schema["$ref"], root), root, depth + 1)
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset([named])
    if isinstance(named, list):
        return frozenset(map(str, named))
    if isinstance(schema.get("enum"), list):
        return frozenset(map(json_kind, schema["enum"]))
    if "const" in schema:
        return frozenset([json_kind(schema["const"])])
    for key in ("anyOf", "oneOf", "allOf"):
        parts = [accepted_types(part, root, depth + 1) for part in schema.get(key) or ()]
        if parts and key == "allOf":
            return next((part for part in parts if part), frozenset())
        if parts:
            return frozenset().union(*parts) if all(parts) else frozenset()
    implied = {"properties": "object", "items": "array"}
    return frozenset(kind for key, kind in implied.items() if key in schema)


def _referenced(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _value_of(text: str) -> Any:
    """A whole text as JSON, or as Python's word for true, false or null, as templates write them."""
    stripped = text.strip()
    if stripped in _PYTHON_WORDS:
        return _PYTHON_WORDS[stripped]
    try:
        value, end = decode(stripped, 0, "")
    except CallError:
        return _NOTHING
    return value if end == len(stripped) else _NOTHING
