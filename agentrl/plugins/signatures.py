"""From a function's annotations to JSON and back: the schema of its arguments, and the objects for its parameters."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from agentrl.errors import PluginError
from agentrl.types import JsonDict

_SCALARS: dict[Any, JsonDict] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
    inspect.Parameter.empty: {},
}
_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_MAX_DEPTH = 16


def type_schema(hint: Any, where: str) -> JsonDict:
    """JSON Schema of one annotation.

    Raises:
        PluginError: JSON has no such type.
    """
    if hint in _SCALARS:
        return dict(_SCALARS[hint])
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _enum(list(arguments))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum([member.value for member in hint])
    if origin in (Union, types.UnionType):
        return {"anyOf": [type_schema(option, where) for option in arguments]}
    if hint in (list, Sequence) or origin in (list, Sequence):
        return {"type": "array", "items": type_schema(arguments[0], where)} if arguments else {"type": "array"}
    if hint in (dict, Mapping) or origin in (dict, Mapping):
        values = type_schema(arguments[1], where) if arguments else {}
        return {"type": "object", "additionalProperties": values} if values else {"type": "object"}
    if hasattr(hint, "__required_keys__"):  # a TypedDict, of typing or of typing_extensions
        fields = {name: type_schema(field, where) for name, field in typing.get_type_hints(hint).items()}
        return {"type": "object", "properties": fields, "required": sorted(hint.__required_keys__)}
    if _is_structure(hint):
        return _structure_schema(hint, where)
    raise PluginError(f"tool function {where}: JSON has no type for {hint!r}; give a `tool_schema` in the tool YAML")


class Arguments:
    """Turns the JSON arguments of a call into the types of a function's annotations: enums, dataclasses, models.

    Args:
        function: the tool.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            hints = hints_of(function)
        except NameError:
            hints = {}  # the tool YAML gives the schema; the function takes what JSON holds
        self._adapters = {name: TypeAdapter(hint) for name, hint in hints.items() if _needs_objects(hint)}

    def convert(self, arguments: JsonDict) -> JsonDict:
        """The arguments as keywords of the function.

        Raises:
            ValueError: the annotation refuses a value; the message is for the model.
        """
        converted = dict(arguments)
        for name, adapter in self._adapters.items():
            if name in converted:
                try:
                    converted[name] = adapter.validate_python(converted[name])
                except ValidationError as error:
                    first = error.errors()[0]
                    place = ".".join(map(str, (name, *first["loc"])))
                    raise ValueError(f"arguments.{place}: {first['msg']}") from error
        return converted


@functools.lru_cache(maxsize=1024)
def arguments_of(function: Callable[..., Any]) -> Arguments:
    """The arguments of a function, read once."""
    return Arguments(function)


def hints_of(function: Any) -> dict[str, Any]:
    """Annotations of a function, of the function behind a partial, or of a callable object.

    Raises:
        NameError: an annotation uses an undefined name.
    """
    function = innermost(function)
    hints = typing.get_type_hints(function if inspect.isroutine(function) else function.__call__, include_extras=True)
    hints.pop("return", None)
    return hints


def innermost(function: Any) -> Any:
    """The function behind a partial."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _needs_objects(hint: Any) -> bool:
    """Whether JSON values must be converted for the annotation; 3.0 is an integer in JSON."""
    if hint is int:
        return True
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return True
    parts = () if get_origin(hint) is Literal else get_args(hint)
    return _is_structure(hint) or any(map(_needs_objects, parts))


def _is_structure(hint: Any) -> bool:
    if get_origin(hint) in (Annotated, tuple, set, frozenset) or hint in (tuple, set, frozenset):
        return True
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, BaseModel))


def _structure_schema(hint: Any, where: str) -> JsonDict:
    try:
        schema = TypeAdapter(hint).json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise PluginError(f"tool function {where}: JSON has no type for {hint!r}: {error}") from error
    definitions = schema.pop("$defs", {})
    inlined: JsonDict = _inline(schema, definitions, where, 0)
    return inlined


def _inline(schema: Any, definitions: JsonDict, where: str, depth: int) -> Any:
    """A schema without references and generated titles, since models read it and it is nested below `parameters`."""
    if depth > _MAX_DEPTH:
        raise PluginError(f"tool function {where}: the type contains itself; give a `tool_schema` in the tool YAML")
    if isinstance(schema, list):
        return [_inline(item, definitions, where, depth) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _inline({**definitions[name], **rest}, definitions, where, depth + 1)
    return {
        key: {name: _inline(item, definitions, where, depth + 1) for name, item in value.items()}
        if key == "properties"
        else value
        if key in ("default", "enum", "const", "examples")
        else _inline(value, definitions, where, depth)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }


def _enum(values: list[Any]) -> JsonDict:
    kinds = {type(value) for value in values}
    name = _NAMES.get(next(iter(kinds))) if len(kinds) == 1 else None
    return {"type": name, "enum": values} if name else {"enum": values}
