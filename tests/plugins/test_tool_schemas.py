"""A tool schema that cannot work is an error at the start, with the tool, the place and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.plugins.tool_schemas import checked_schema

TEXT = {"type": "string"}


def schema(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "find", "description": "", "parameters": parameters}}


def refusal(given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        checked_schema(given, "my.yaml: tools[0]")
    return str(caught.value)


def of(properties: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


@pytest.mark.parametrize(
    ("parameters", "place", "fix"),
    [
        (of({"a": {"$ref": "#/$defs/X"}}), ".properties.a: `$ref: #/$defs/X` leads nowhere", "no `$defs` beside"),
        (of({"a": {"$ref": "#/$defs/Plac"}}, **{"$defs": {"Place": TEXT}}), "leads nowhere", "mean '#/$defs/Place'?"),
        (of({"a": {"items": {"$ref": "https://x.org/s.json"}}}), ".properties.a.items: `$ref", "copy that schema into"),
        (of({"a": {"$ref": "#/properties/a"}}), ".properties.a: `$ref: #/properties/a`", "leads back to itself"),
        ({"allOf": [{"$ref": "#"}]}, "parameters: the schema", "refers to itself without end"),
        ({"type": "string"}, "parameters: `type` is 'string'", "wanted object: a call's arguments are"),
        ({"type": ["array", "null"]}, "parameters: `type` is ['array', 'null']", "wanted object"),
        ("object", "parameters: got 'object'", "wanted {type: object, properties: {...}}"),
        (None, "parameters: got None", "wanted {type: object"),
        (True, "parameters: got True", "wanted {type: object"),
        ([TEXT], "parameters: got [{'type': 'string'}]", "wanted {type: object"),
        (of({"a": {"type": "str"}}), ".properties.a: 'str' is not valid as `type`", "Did you mean 'string'?"),
        (of({"a": {"type": "int"}}), ".properties.a: 'int' is not valid as `type`", "Did you mean 'integer'?"),
        (of({"a": {"type": ["string", "nul"]}}), ".properties.a: 'nul' is not valid", "Did you mean 'null'?"),
        (of({"a": {"items": {"type": "any"}}}), ".properties.a.items: 'any' is not valid", "Known: array, boolean"),
        (of({"a": "string"}), ".properties.a: 'string' is not of type", "wanted a schema such as {type: string}"),
        (of({"type": "string"}), ".properties.type: 'string' is not of type", "wanted a schema such as {type: string}"),
        (of(["a"]), "parameters.properties: ['a'] is not of type 'object'", ""),
        (of({"a": {"type": "string", "required": True}}), ".properties.a.required: True", "list the names of required"),
        (of({"a": {"type": "string", "pattern": "("}}), ".properties.a.pattern: '(' is not a 'regex'", ""),
        (of({"query": TEXT}, required=["qeury"]), "parameters: `required` names 'qeury'", "Did you mean 'query'?"),
        ({"type": "object", "required": ["q"]}, "parameters: `required` names 'q', which is not in", "None is known"),
        (of({"a": of({"b": TEXT}, required=["c"])}), ".properties.a: `required` names 'c'", "Known: b"),
        (of({"a": TEXT}, anyOf=[{"required": ["b"]}]), ".anyOf[0]: `required` names 'b'", "Known: a"),
        (of({"a": {"type": "integer", "enum": ["1", "2"]}}), ".properties.a: no value of ['1', '2'] is of `type`", ""),
        (of({"a": {"enum": []}}), ".properties.a: `enum` is empty", ""),
        (of({"a": {"minimum": 2, "maximum": 1}}), ".properties.a: `minimum` 2 is above `maximum` 1", ""),
    ],
)
def test_schemas_that_cannot_work(parameters: Any, place: str, fix: str) -> None:
    text = refusal(schema(parameters))
    assert text.startswith("my.yaml: tools[0]: tool 'find': tool_schema.function.parameters")
    assert place in text
    assert fix in text


@pytest.mark.parametrize("given", [{}, [], None, {"function": {"name": 3}}, {"name": "f", "parameters": {}}])
def test_what_is_no_function_schema(given: Any) -> None:
    assert "tool_schema: wanted {type: function" in refusal(given)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"type": "object"},
        {"type": ["object", "null"], "properties": {}},
        of({"a": {"$ref": "#/$defs/X"}}, **{"$defs": {"X": {"$ref": "#/$defs/Y"}, "Y": TEXT}}),
        of({"a": {"$ref": "#/definitions/X"}}, definitions={"X": TEXT}),
        of({"tree": {"$ref": "#/$defs/T"}}, **{"$defs": {"T": of({"next": {"$ref": "#/$defs/T"}})}}),
        of({"a": {"$ref": "#x"}}, **{"$defs": {"X": {"$anchor": "x", "type": "string"}}}),
        of({"a": TEXT, "b": TEXT}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]),
        of({}, patternProperties={"^x_": TEXT}, required=["x_1"]),
        of({"a": {"type": "object", "additionalProperties": TEXT, "required": ["b"]}}),
        {"oneOf": [of({"a": TEXT}, required=["a"]), of({"b": TEXT}, required=["b"])]},
        of({"properties": {"type": "string"}, "type": TEXT, "required": {"type": "boolean"}}, required=["type"]),
        of({"a": {"type": "string", "enum": ["x", None]}, "b": True, "c": {"const": 1, "type": "number"}}),
        {"$schema": "http://json-schema.org/draft-07/schema#", **of({"a": TEXT}, required=["a"])},
    ],
)
def test_schemas_that_work(parameters: Any) -> None:
    assert checked_schema(schema(parameters), "here") == schema(parameters)


def test_no_parameters_at_all() -> None:
    assert checked_schema({"function": {"name": "now"}}, "here")["function"]["name"] == "now"
