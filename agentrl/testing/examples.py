"""Arguments that fit a JSON Schema, to try a tool whose author gave no example."""

from __future__ import annotations

from typing import Any

from agentrl.types import JsonDict


def example_arguments(parameters: JsonDict) -> JsonDict:
    """The required arguments of a function schema, each with the simplest value that fits."""
    properties = parameters.get("properties", {})
    return {name: _example(properties.get(name, {})) for name in parameters.get("required", [])}


def _example(schema: JsonDict) -> Any:
    """A value that fits: one that the schema itself gives, else one of its type."""
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _example(schema[key][0])
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return example_arguments(schema)
    if kind == "array":
        return [_example(schema.get("items", {})) for _ in range(max(1, schema.get("minItems", 1)))]
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    plain: dict[str, Any] = {"boolean": True, "null": None}
    return plain.get(kind, "1".rjust(max(1, schema.get("minLength", 1)), "1"))
