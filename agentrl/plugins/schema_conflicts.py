"""Finds JSON Schemas that no value fits. What it does not understand it takes to fit: it never refuses a good schema.

A schema asks several things of one value: its own keywords, those of `allOf`, of its `$ref` and so on. They are its
parts, and a value must fit all of them. For each kind of value that their `type`s permit there is one question: do the
parts contradict each other? Nothing fits if they do for every kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from agentrl.errors import repr_of
from agentrl.types import JsonDict

_KINDS = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
_ASSERTING = frozenset(Draft202012Validator.VALIDATORS) | {"if", "then", "else"}
"""Keywords that can refuse a value; `description` and the like cannot."""
_CHOICES = ("anyOf", "oneOf")
_ENDLESS = "every value would hold another one of its own kind, without end"
_MOST_STEPS = 2000
"""Of one search; a schema of many nested choices is taken to fit."""

Around = frozenset[frozenset[int]]
"""The parts, by identity, of every value within which this one lies."""


def resolver_of(parameters: JsonDict) -> Any:
    """Looks up a `$ref` of a tool's parameters; raises `referencing.exceptions.Unresolvable`."""
    resource = DRAFT202012.create_resource(parameters)
    registry: Registry[Any] = Registry().with_resource(resource.id() or "", resource)
    return registry.resolver(resource.id() or "")


class Conflicts:
    """Finds the conflicts in the schemas of one tool.

    Args:
        parameters: of the tool; every `$ref` in it leads somewhere.
    """

    def __init__(self, parameters: JsonDict) -> None:
        self._resolver, self._validator = resolver_of(parameters), Draft202012Validator(parameters)
        self._steps = 0

    def of(self, *schemas: Any) -> str | None:
        """Why no value fits these schemas at once; None: one may.

        Raises:
            RecursionError: the schemas refer to themselves without end.
        """
        self._steps = 0
        return self._conflict(schemas, frozenset())

    def _conflict(self, schemas: Sequence[Any], around: Around) -> str | None:
        self._steps += 1
        parts = list(self._parts(schemas))
        if not parts:
            return None
        if False in parts:
            return "`false` fits no value"
        identity = frozenset(map(id, parts))
        if identity in around:
            return _ENDLESS
        if self._steps > _MOST_STEPS:
            return None
        around |= {identity}
        if any(fits_all(part["not"]) for part in parts if "not" in part):
            return "`not` refuses every value"
        kinds = _KINDS.intersection(*map(_kinds_of, parts))
        if not kinds:
            return f"no value is of `type` {' and '.join(str(part['type']) for part in parts if 'type' in part)}"
        if any("enum" in part or "const" in part for part in parts):
            return self._conflict_of_values(parts)
        found = [self._conflict_of_kind(kind, parts, around) for kind in sorted(kinds)]
        if kinds == _KINDS:  # `{minimum: 2, maximum: 1}` means numbers, though a text would fit it
            found = [text for kind, text in zip(sorted(kinds), found, strict=True) if text and kind != "integer"] or [
                None
            ]
        return found[0] if None not in found else self._conflict_of_choices(parts, around)

    def _conflict_of_kind(self, kind: str, parts: list[JsonDict], around: Around) -> str | None:
        match kind:
            case "integer":
                return _of_integer(parts)
            case "number":
                return _of_number(parts)
            case "string":
                return _of_string(parts)
            case "array":
                return self._of_array(parts, around)
            case "object":
                return self._of_object(parts, around)
        return None

    def _parts(self, schemas: Iterable[Any]) -> Iterator[Any]:
        """All schemas that describe the same value as these; `True` is none."""
        todo, seen = list(schemas), set[int]()
        is_object = any(isinstance(schema, Mapping) and schema.get("type") == "object" for schema in todo)
        while todo:
            schema = todo.pop(0)
            if schema is True or id(schema) in seen:
                continue
            seen.add(id(schema))
            yield schema
            if schema is False:
                continue
            todo += schema.get("allOf", ())
            if "$ref" in schema:
                todo.append(self._resolver.lookup(schema["$ref"]).contents)
            if "if" in schema and (schema["if"] is False or fits_all(schema["if"])):
                todo.append(schema.get("then" if schema["if"] is not False else "else", True))
            wanted = schema.get("required", ()) if is_object else ()
            todo += [item for name, item in schema.get("dependentSchemas", {}).items() if name in wanted]

    def _conflict_of_values(self, parts: list[JsonDict]) -> str | None:
        listing = next(part for part in parts if "const" in part or "enum" in part)
        listed = [listing["const"]] if "const" in listing else listing["enum"]
        if not listed:
            return "`enum` is empty: no value would fit"
        if any(all(self._validator.evolve(schema=part).is_valid(value) for part in parts) for value in listed):
            return None
        for part in parts:
            kind = self._validator.evolve(schema={"type": part.get("type", [*_KINDS])})
            if not any(map(kind.is_valid, listed)):
                return f"no value of {repr_of(listed)} is of `type` {part['type']}"
        return f"no value of {repr_of(listed)} fits what else the schema asks for"

    def _conflict_of_choices(self, parts: list[JsonDict], around: Around) -> str | None:
        # `allOf` and `$ref` are among the parts already: followed again, they would bring the choices back.
        followed = (*_CHOICES, "allOf", "$ref", "dependentSchemas", "if")
        bare = [{key: value for key, value in part.items() if key not in followed} for part in parts]
        for key, choices in ((key, part[key]) for key in _CHOICES for part in parts if key in part):
            if key == "oneOf" and all(choices.count(choice) > 1 for choice in choices):
                return "`oneOf` lists each schema twice: a value would fit none or several"
            found = [self._conflict([*bare, choice], around) for choice in choices]
            if None not in found:
                return f"no schema of `{key}` fits: {found[0]}"
        return None

    def _of_array(self, parts: list[JsonDict], around: Around) -> str | None:
        least, most = _bounds(parts, "minItems", "maxItems")
        if least > most:
            return _above("minItems", least, "maxItems", most)
        for index in range(int(min(least, _longest_prefix(parts) + 1))):
            found = self._conflict([_item(part, index) for part in parts], around)
            if found is not None:
                return f"at least {least} items are wanted, and item {index + 1}: {found}"
        for part in parts:
            inside = part.get("minContains", 1) if "contains" in part else 0
            if inside > min(part.get("maxContains", math.inf), most):
                return f"{inside} items that `contains` asks for are more than are allowed"
            found = self._conflict([part["contains"]], around) if inside else None
            if found is not None:
                return f"`contains`: {found}"
            values = part["items"].get("enum") if isinstance(part.get("items"), Mapping) else None
            if part.get("uniqueItems") and values is not None and least > len(values):
                return f"`minItems` {least} is more than the {len(values)} different values of `enum`"
        return None

    def _of_object(self, parts: list[JsonDict], around: Around) -> str | None:
        least, most = _bounds(parts, "minProperties", "maxProperties")
        if least > most:
            return _above("minProperties", least, "maxProperties", most)
        required = _required(parts)
        if len(required) > most:
            return f"`required` names {len(required)} properties, and `maxProperties` is {most}"
        for part in parts:
            if part.get("additionalProperties") is False and "patternProperties" not in part:
                possible = [name for name, schema in part.get("properties", {}).items() if schema is not False]
                if least > len(possible):
                    return f"`minProperties` {least} is more than the {len(possible)} `properties` that there can be"
        for name in required:
            names = [part["propertyNames"] for part in parts if "propertyNames" in part]
            if not all(self._validator.evolve(schema=schema).is_valid(name) for schema in names):
                return f"the required property '{name}' has a name that `propertyNames` refuses"
            found = self._conflict([schema for part in parts for schema in _schemas_of(name, part)], around)
            if found is not None:
                return f"the required property '{name}': {found}"
        return None


def fits_all(schema: Any) -> bool:
    """It refuses nothing: `true`, `{}`, or only a description and the like."""
    return schema is True or (isinstance(schema, Mapping) and not _ASSERTING & {*schema})


def _kinds_of(part: JsonDict) -> frozenset[str]:
    """Kinds of values that its types permit; "number" stands for numbers that are no integers."""
    kinds = _named_kinds(part)
    refused = part.get("not")
    if isinstance(refused, Mapping) and _ASSERTING & {*refused} == {"type"}:
        kinds -= _named_kinds(refused)
    return kinds


def _named_kinds(part: Mapping[str, Any]) -> frozenset[str]:
    named = part.get("type", _KINDS)
    kinds = frozenset([named] if isinstance(named, str) else named)
    return kinds | {"integer"} if "number" in kinds else kinds


def _bounds(parts: list[JsonDict], low: str, high: str) -> tuple[Any, Any]:
    """The tightest of all parts."""
    return max(part.get(low, 0) for part in parts), min(part.get(high, math.inf) for part in parts)


def _above(low: str, least: Any, high: str, most: Any) -> str:
    return f"`{low}` {least} is above `{high}` {most}"


def _of_string(parts: list[JsonDict]) -> str | None:
    least, most = _bounds(parts, "minLength", "maxLength")
    return _above("minLength", least, "maxLength", most) if least > most else None


def _of_number(parts: list[JsonDict]) -> str | None:
    least, above = _edge(parts, "minimum", "exclusiveMinimum", max, -math.inf)
    most, below = _edge(parts, "maximum", "exclusiveMaximum", min, math.inf)
    if least > most:
        return _above("minimum", least, "maximum", most)
    return f"no number is above {least} and below {most}" if least == most and (above or below) else None


def _of_integer(parts: list[JsonDict]) -> str | None:
    found = _of_number(parts)
    least, above = _edge(parts, "minimum", "exclusiveMinimum", max, -math.inf)
    most, below = _edge(parts, "maximum", "exclusiveMaximum", min, math.inf)
    if found is not None or math.inf in (-least, most):
        return found
    for step in [1, *(part["multipleOf"] for part in parts if "multipleOf" in part)]:
        # The numbers of the first and last step that lie inside: from 1.5 to below 4 in steps of 2, both are 1.
        unit, low, high = Fraction(str(step)), Fraction(str(least)), Fraction(str(most))
        first, last = math.ceil(low / unit), math.floor(high / unit)
        if first + (above and first * unit == low) > last - (below and last * unit == high):
            return f"no {'integer' if step == 1 else f'multiple of {step}'} lies between {least} and {most}"
    return None


def _edge(
    parts: list[JsonDict], closed: str, opened: str, tightest: Callable[..., Any], none: float
) -> tuple[Any, bool]:
    """The tightest bound on one side, and whether it is outside itself."""
    inner = [part[opened] for part in parts if opened in part]
    bound = tightest([none, *inner, *(part[closed] for part in parts if closed in part)])
    return bound, bound in inner


def _longest_prefix(parts: list[JsonDict]) -> int:
    return max(len(part.get("prefixItems", ())) for part in parts)


def _item(part: JsonDict, index: int) -> Any:
    """The schema of an item."""
    prefix = part.get("prefixItems", ())
    return prefix[index] if index < len(prefix) else part.get("items", True)


def _required(parts: list[JsonDict]) -> list[str]:
    """Names of required properties, in order, with those that they need in turn."""
    names = [name for part in parts for name in part.get("required", ())]
    for name in names:
        names += [
            other for part in parts for other in part.get("dependentRequired", {}).get(name, ()) if other not in names
        ]
    return list(dict.fromkeys(names))


def _schemas_of(name: str, part: JsonDict) -> list[Any]:
    """What a part says of a property of this name."""
    own = [part["properties"][name]] if name in part.get("properties", {}) else []
    own += [schema for pattern, schema in part.get("patternProperties", {}).items() if re.search(pattern, name)]
    return own or [part.get("additionalProperties", True)]
