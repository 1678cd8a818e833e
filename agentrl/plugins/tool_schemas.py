"""Refuses tool schemas that cannot work: no call would ever fit them, or checking one would fail."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing.exceptions import Unresolvable

from agentrl.errors import ConfigError, repr_of, suggest
from agentrl.plugins.schema_conflicts import Conflicts, fits_all, resolver_of
from agentrl.types import JsonDict

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_PYTHON: dict[str, str] = {
    **dict.fromkeys(("str", "text"), "string"),
    **dict.fromkeys(("float", "double"), "number"),
    **dict.fromkeys(("dict", "map"), "object"),
    **dict.fromkeys(("list", "tuple"), "array"),
    "int": "integer",
    "bool": "boolean",
    "none": "null",
}
"""Types as Python has them."""
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else")
_SAME_VALUE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
"""Keywords whose schemas describe the same value as the schema around them."""
_OBJECT: JsonDict = {"type": "object"}

Node = tuple[str, JsonDict, frozenset[str], bool]
"""Place of a schema within `parameters`, the schema, the properties that schemas around it give the same value, and
whether a value is to fit it, unlike what stands in `not`."""


def checked_schema(schema: Any, where: str) -> JsonDict:
    """A tool's schema, if calls can fit it.

    Args:
        schema: `{type: function, function: {name, description, parameters}}`.
        where: the file and entry.

    Raises:
        ConfigError: names the tool, the place and what to write instead.
    """
    function = schema.get("function") if isinstance(schema, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        wanted = "wanted {type: function, function: {name, description, parameters}}"
        raise ConfigError(f"{where}.tool_schema: {wanted}")
    parameters = function.get("parameters", {})
    problem = _problem(parameters)
    if problem is not None:
        place, text = problem
        raise ConfigError(f"{where}: tool '{function['name']}': tool_schema.function.parameters{place}: {text}")
    return dict(schema)


def described_schema(entry: Mapping[str, Any], own: Mapping[str, Any] | None, where: str) -> JsonDict:
    """The schema of a tool that is given as `{name, description, parameters}`.

    `parameters` is JSON Schema, or only its properties::

        {expression: {type: string}}        -> {type: object, properties: {expression: …}, required: [expression]}
        {expression: {type: string}, digits: {type: integer, default: 2}}                  required: [expression]

    Args:
        entry: the description; what it omits is as in `own`.
        own: the schema of the tool itself; None: it has none.
        where: the file and entry, or the row.

    Raises:
        ConfigError: as `checked_schema`, or a parameter that the tool does not take.
    """
    name = entry.get("name")
    function = dict((own or {}).get("function") or {})
    given = entry.get("parameters")
    parameters = function.get("parameters", {"type": "object", "properties": {}}) if given is None else given
    if isinstance(parameters, Mapping) and given is not None and not _is_schema(parameters):
        parameters = _of_properties(parameters, function.get("parameters"))
    described = {"name": name, "description": entry.get("description") or function.get("description") or ""}
    schema = checked_schema({"type": "function", "function": {**described, "parameters": dict(parameters)}}, where)
    known = (function.get("parameters") or {}).get("properties") or {}
    for parameter in parameters.get("properties") or {}:
        if known and parameter not in known:
            raise ConfigError(f"{where}: tool '{name}' takes no argument '{parameter}'.{suggest(parameter, known)}")
    return schema


def _is_schema(parameters: Mapping[str, Any]) -> bool:
    """Whether a mapping is JSON Schema of an object; a property may be called `type` or `properties` as well."""
    return isinstance(parameters.get("type"), str | list) or (
        isinstance(parameters.get("properties"), Mapping) and not isinstance(parameters["properties"].get("type"), str)
    )


def _of_properties(properties: Mapping[str, Any], own: Mapping[str, Any] | None) -> JsonDict:
    """JSON Schema of properties: those are required that say so, else that the tool requires, else without default."""
    known, needed = (own or {}).get("properties") or {}, (own or {}).get("required") or ()
    plain: JsonDict = {}
    required: list[str] = []
    for name, value in properties.items():
        fields = dict(value) if isinstance(value, Mapping) else {}
        if isinstance(fields.get("required"), bool):
            is_required = fields.pop("required")
        else:
            is_required = name in needed if name in known else "default" not in fields
        plain[name] = fields or value
        required += [name] if is_required else []
    return {"type": "object", "properties": plain, "required": required}


def _problem(parameters: Any) -> tuple[str, str] | None:
    """The first problem: its place and what is wrong."""
    if not isinstance(parameters, Mapping):
        return "", f"got {repr_of(parameters)}, wanted {{type: object, properties: {{...}}}}"
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError as error:
        return _of_schema_error(error)
    kinds = parameters.get("type", "object")
    if kinds != "object" and "object" not in kinds:
        return "", f"`type` is {kinds!r}, wanted object: a call's arguments are an object of named values"
    nodes = [*_walk("", dict(parameters), frozenset())]
    for place, node, around, _ in nodes:
        text = _bad_name(node) or _bad_reference(node, dict(parameters)) or _bad_required(node, around)
        if text is not None:
            return place, text
    try:
        Draft202012Validator(parameters).is_valid({})
        return _conflict(nodes, dict(parameters))
    except RecursionError:
        return "", "the schema refers to itself without end"


def _bad_name(schema: JsonDict) -> str | None:
    properties = schema.get("properties")
    name = next((name for name in properties or () if not isinstance(name, str)), "")
    return None if name == "" else f"the property {name!r} is no text: put its name into quotes"


def _conflict(nodes: list[Node], parameters: JsonDict) -> tuple[str, str] | None:
    """The innermost schema that no value fits; one that only forbids a property (`not: {}`) may stand inside."""
    conflicts = Conflicts(parameters)
    for place, node, _, is_asked in reversed(nodes):
        text = conflicts.of(node, *([] if place else [_OBJECT])) if is_asked else None
        if text is not None and (not place or not fits_all(node.get("not", False))):
            return place, text if place else f"no call would fit: {text}"
    return None


def _of_schema_error(error: SchemaError) -> tuple[str, str]:
    path = list(error.absolute_path)
    key = str(path[-1]) if path else ""
    if key == "type" and error.validator == "anyOf":  # of the value of `type`; a property may have that name too
        value = error.instance
        wrong = next((kind for kind in value if kind not in _TYPES), value) if isinstance(value, list) else value
        known = _PYTHON.get(str(wrong).lower())
        hint = f" Did you mean '{known}'?" if known else suggest(str(wrong), _TYPES)
        return _place(path[:-1]), f"{wrong!r} is not valid as `type`.{hint}"
    message = error.message
    if key == "required" and isinstance(error.instance, bool):
        message += ": list the names of required properties beside `properties`"
    elif len(path) > 1 and path[-2] == "properties" and isinstance(error.instance, str):
        message += f": wanted a schema such as {{type: {_PYTHON.get(error.instance, error.instance)}}}"
    return _place(path), message


def _walk(place: str, node: JsonDict, around: frozenset[str], is_asked: bool = True) -> Iterator[Node]:
    """Every schema in a schema, itself first."""
    yield place, node, around, is_asked
    siblings = [part for part in node.get("allOf", ()) if isinstance(part, Mapping)]
    own = around.union(*(part.get("properties") or {} for part in (node, *siblings)))
    for key, value in node.items():
        if key in _NAMED:
            inner = [(f"{place}.{key}.{name}", item) for name, item in value.items()]
        elif key in _LISTED:
            inner = [(f"{place}.{key}[{number}]", item) for number, item in enumerate(value)]
        elif key in _SINGLE:
            inner = [(f"{place}.{key}", value)]
        else:
            continue
        for at, item in inner:
            if isinstance(item, Mapping):
                inside = own if key in _SAME_VALUE else frozenset[str]()
                yield from _walk(at, dict(item), inside, is_asked and key not in ("not", "if"))


def _bad_reference(node: JsonDict, parameters: JsonDict) -> str | None:
    """Why the schema's `$ref` leads nowhere; None if it does lead somewhere."""
    reference, seen = node.get("$ref"), set[str]()
    resolver = resolver_of(parameters)
    while isinstance(reference, str):
        if reference in seen:
            return f"`$ref: {reference}` leads back to itself"
        seen.add(reference)
        try:
            found = resolver.lookup(reference).contents
        except Unresolvable:
            names = [f"#/{key}/{name}" for key in ("$defs", "definitions") for name in parameters.get(key) or {}]
            hint = suggest(reference, names) if names else " There is no `$defs` beside `properties`."
            if not reference.startswith("#"):
                hint = " Other files are not read: copy that schema into `$defs` beside `properties`."
            return f"`$ref: {reference}` leads nowhere.{hint}"
        reference = found.get("$ref") if isinstance(found, Mapping) else None
    return None


def _bad_required(node: JsonDict, around: frozenset[str]) -> str | None:
    """A required name that no property has: the model is never told of it."""
    own = [*(node.get("properties") or {}), *around]
    patterns = node.get("patternProperties") or {}
    open_to_others = isinstance(node.get("additionalProperties"), Mapping) and not own
    if open_to_others or any(key in node for key in ("allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas")):
        return None
    for name in node.get("required") or ():
        if name not in own and not any(re.search(pattern, name) for pattern in patterns):
            return f"`required` names '{name}', which is not in `properties`.{suggest(name, own)}"
    return None


def _place(path: list[Any]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
