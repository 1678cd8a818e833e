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
        (of({True: TEXT}), "parameters: the property True is no text", "put its name into quotes"),
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


INT = {"type": "integer"}
CHAIN = of({"next": {"$ref": "#/$defs/T"}}, required=["next"])


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"enum": ["a", "b"]}, "parameters: no call would fit: no value of ['a', 'b'] is of `type` object"),
        ({"const": 3}, "no call would fit: no value of [3] is of `type` object"),
        (of({"a": INT}, enum=[{"a": "x"}]), "no call would fit: no value of [{'a': 'x'}] fits what else"),
        ({"not": {}}, "no call would fit: `not` refuses every value"),
        ({"not": True}, "no call would fit: `not` refuses every value"),
        ({"not": {"description": "nothing"}}, "no call would fit: `not` refuses every value"),
        ({"not": {"type": "object"}}, "no call would fit: no value is of `type` object"),
        (of({"a": False}, required=["a"]), "the required property 'a': `false` fits no value"),
        (of({"a": {"not": {}}}, required=["a"]), "the required property 'a': `not` refuses every value"),
        (of({"a": {"type": "string", "not": {"type": "string"}}}), ".properties.a: no value is of `type` string"),
        (of({}, patternProperties={"^a": False}, required=["a"]), "the required property 'a': `false` fits no value"),
        ({"allOf": [of({}, additionalProperties=False), of({"b": TEXT}, required=["b"])]}, "property 'b': `false`"),
        ({"allOf": [of({"a": TEXT}), of({"a": INT}, required=["a"])]}, "no value is of `type` string and integer"),
        (of({"a": {"$ref": "#/$defs/T", "type": "string"}}, **{"$defs": {"T": INT}}), "of `type` string and integer"),
        ({"allOf": [{"type": "object"}, {"type": "string"}]}, "no value is of `type` object and object and string"),
        ({"type": "object", "anyOf": [TEXT, INT]}, "no schema of `anyOf` fits: no value is of `type`"),
        ({"anyOf": [False, False]}, "no schema of `anyOf` fits: `false` fits no value"),
        ({"oneOf": [of({"a": TEXT}), of({"a": TEXT})]}, "`oneOf` lists each schema twice"),
        (of({"a": TEXT, "b": False}, required=["a"], dependentRequired={"a": ["b"]}), "property 'b': `false`"),
        (of({"a": TEXT}, required=["a"], dependentSchemas={"a": {"maxProperties": 0}}), "`required` names 1"),
        (of({"a": TEXT, "b": TEXT}, required=["a", "b"], maxProperties=1), "`required` names 2 properties"),
        (of({"a": TEXT}, additionalProperties=False, minProperties=2), "`minProperties` 2 is more than the 1"),
        (of({"ab": TEXT}, required=["ab"], propertyNames={"maxLength": 1}), "a name that `propertyNames` refuses"),
        (of({"a": {**INT, "minimum": 5, "maximum": 1}}), ".properties.a: `minimum` 5 is above `maximum` 1"),
        (of({"a": {**INT, "exclusiveMinimum": 1, "exclusiveMaximum": 2}}), "no integer lies between 1 and 2"),
        (of({"a": {"type": "number", "minimum": 1, "exclusiveMaximum": 1}}), "no number is above 1 and below 1"),
        (of({"a": {**INT, "minimum": 6, "maximum": 9, "multipleOf": 5}}), "no multiple of 5 lies between 6 and 9"),
        (of({"a": {**TEXT, "minLength": 3, "maxLength": 2}}), "`minLength` 3 is above `maxLength` 2"),
        (of({"a": {**TEXT, "enum": ["abc"], "maxLength": 2}}), "no value of ['abc'] fits what else the"),
        (of({"a": {"type": "array", "items": False, "minItems": 1}}), "at least 1 items are wanted, and"),
        (of({"a": {"type": "array", "prefixItems": [TEXT], "items": False, "minItems": 2}}), "and item 2: `false`"),
        (of({"a": {"type": "array", "contains": False}}), ".properties.a: `contains`: `false` fits no value"),
        (of({"a": {"type": "array", "contains": TEXT, "minContains": 3, "maxItems": 2}}), "3 items that `con"),
        (of({"a": {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3}}), "2 different v"),
        (of({"a": {"$ref": "#/$defs/T"}}, required=["a"], **{"$defs": {"T": CHAIN}}), "another one of its own kind"),
        ({"type": "object", "if": True, "then": False}, "no call would fit: `false` fits no value"),
    ],
)  # fmt: skip
def test_schemas_that_no_call_fits(parameters: Any, told: str) -> None:
    text = refusal(schema(parameters))
    assert text.startswith("my.yaml: tools[0]: tool 'find': tool_schema.function.parameters")
    assert told in text


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
        {"allOf": [of({"a": TEXT}), {"required": ["a"]}]},
        of({"a": TEXT, "b": False, "c": {"not": {}, "description": "no longer"}}, required=["a"]),
        {"enum": [{"a": 1}, "b"]},
        {"not": {"required": ["a", "b"]}, **of({"a": TEXT, "b": TEXT})},
        of({"a": {"not": {"type": "null"}}, "b": {"not": {"enum": []}}}, required=["a", "b"]),
        {"anyOf": [of({"a": TEXT}, required=["a"]), False]},
        of({"a": {**INT, "minimum": 5, "exclusiveMaximum": 6}, "b": {"type": "number", "minimum": 1, "maximum": 1}}),
        of({"a": {"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 2, "multipleOf": 0.1}}, required=["a"]),
        of({"a": {"type": ["string", "null"], "minLength": 3, "maxLength": 2}}, required=["a"]),
        of({"a": {"type": "array", "items": False}, "b": {"type": "array", "contains": False, "minContains": 0}}),
        of({"a": {"anyOf": [{"$ref": "#/$defs/T"}, {"type": "null"}]}}, required=["a"], **{"$defs": {
            "T": of({"next": {"anyOf": [{"$ref": "#/$defs/T"}, {"type": "null"}]}}, required=["next"])}}),
        of({"a": {"type": "array", "items": {"$ref": "#"}}}, required=["a"]),
        of({"a": TEXT, "b": TEXT}, **{"if": {"required": ["a"]}, "then": {"required": ["b"]}}),
        {"type": "object", "if": True, "else": False},
    ],
)  # fmt: skip
def test_schemas_that_work(parameters: Any) -> None:
    assert checked_schema(schema(parameters), "here") == schema(parameters)


def test_no_parameters_at_all() -> None:
    assert checked_schema({"function": {"name": "now"}}, "here")["function"]["name"] == "now"
