"""The keys of the configuration models, and what each of them accepts, in words."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from agentrl.config.base import PathKind, Section

_PLAIN = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    Any: "anything",
}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def section_of(field: FieldInfo) -> type[Section] | None:
    """The section that a field holds; None for a leaf."""
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def walk(model: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key of a model, sections included, as dotted paths in the order of the models."""
    for name, field in model.model_fields.items():
        yield prefix + name, field
        section = section_of(field)
        if section is not None:
            yield from walk(section, f"{prefix}{name}.")


@cache
def find_field(model: type[Section], path: str) -> FieldInfo | None:
    """The field at a dotted path, or None."""
    name, _, rest = path.partition(".")
    field = model.model_fields.get(name)
    if field is None or not rest:
        return field
    section = section_of(field)
    return find_field(section, rest) if section else None


def field_key(model: type[Section], path: str) -> str:
    """The key that a dotted path is part of: `reward_kwargs.scale` is in the mapping `reward_kwargs`."""
    key = path
    while key and find_field(model, key) is None:
        key = key.rpartition(".")[0]
    return key or path


def is_free(model: type[Section], path: str) -> bool:
    """Whether a path is below a field that takes any mapping, such as `custom_reward_function.reward_kwargs`."""
    parent = path
    while "." in parent:
        parent = parent.rpartition(".")[0]
        field = find_field(model, parent)
        if field is not None:
            return any(get_origin(kind) is dict for kind in _alternatives(field.annotation))
    return False


def nearest(model: type[Section], path: str) -> str:
    """A sentence with the known key nearest to an unknown one, anywhere in the tree."""
    # The last part counts more than the whole path: `trainer.lr` suggests `critic.optim.lr`, not another trainer key.
    leaf = path.rpartition(".")[2]

    def likeness(candidate: str) -> float:
        whole = difflib.SequenceMatcher(None, path, candidate).ratio()
        last = difflib.SequenceMatcher(None, leaf, candidate.rpartition(".")[2]).ratio()
        return 0.6 * last + 0.4 * whole

    names = [*(known for known, _ in walk(model)), *(name for name in model.foreign_keys if "*" not in name)]
    best = max(names, key=likeness)
    if likeness(best) >= 0.6:
        return f" Did you mean '{best}'?"
    parent = path.rpartition(".")[0]
    siblings = _siblings(model, parent)
    return f" Known{f' in {parent!r}' if parent else ''}: {', '.join(siblings)}." if siblings else ""


def _siblings(model: type[Section], parent: str) -> list[str]:
    if not parent:
        return list(model.model_fields)
    field = find_field(model, parent)
    section = section_of(field) if field else None
    return list(section.model_fields) if section else []


def describe_field(field: FieldInfo) -> str:
    """What a field accepts, in words: `a whole number at least 1 or null`."""
    section = section_of(field)
    if section is not None:
        return f"a section with the keys {', '.join(section.model_fields)}"
    kinds = [_describe_kind(kind) for kind in _alternatives(field.annotation)]
    bounds = [
        f"{word} {getattr(item, attribute):g}"
        for item in field.metadata
        for attribute, word in _BOUNDS.items()
        if getattr(item, attribute, None) is not None
    ]
    if bounds:
        kinds[0] += f" {' and '.join(bounds)}"
    return kinds[0] if len(kinds) == 1 else f"{', '.join(kinds[:-1])} or {kinds[-1]}"


def _describe_kind(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if kind in _PLAIN:
        return _PLAIN[kind]
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return (
            "one of " + ", ".join(f"'{choice}'" for choice in arguments) if len(arguments) > 1 else f"'{arguments[0]}'"
        )
    if get_origin(kind) is list:
        return f"a list of {_plural(arguments[0])}"
    if get_origin(kind) is tuple:
        return f"a list of {len(arguments)} {_plural(arguments[0])}"
    return "a mapping"


def _plural(kind: Any) -> str:
    plurals = {int: "whole numbers", float: "numbers"}
    return plurals.get(kind) or _describe_kind(kind).removeprefix("one of ")


def accepts(field: FieldInfo, kind: type) -> bool:
    """Whether the field accepts a plain value of this Python type."""
    for alternative in _alternatives(field.annotation):
        plain = get_args(alternative)[0] if get_origin(alternative) is Annotated else alternative
        if plain is kind or plain is Any or (get_origin(plain) is Literal and kind is str):
            return True
    return False


def list_item(field: FieldInfo) -> type | None:
    """The plain kind of the items of a field that accepts a list; None for other fields."""
    for alternative in _alternatives(field.annotation):
        plain = get_args(alternative)[0] if get_origin(alternative) is Annotated else alternative
        if get_origin(plain) in (list, tuple):
            item = get_args(plain)[0]
            return get_args(item)[0] if get_origin(item) is Annotated else item  # type: ignore[no-any-return]
    return None


def path_kind(field: FieldInfo) -> PathKind | None:
    """How to treat the text of a field that holds paths; None for other fields."""
    for item in field.metadata:
        if isinstance(item, PathKind):
            return item
    return next(_path_kinds(field.annotation), None)


def _path_kinds(annotation: Any) -> Iterator[PathKind]:
    if get_origin(annotation) is Annotated:
        yield from (item for item in get_args(annotation)[1:] if isinstance(item, PathKind))
    elif get_origin(annotation) is not Literal:
        for argument in get_args(annotation):
            yield from _path_kinds(argument)


def _alternatives(annotation: Any) -> list[Any]:
    """Members of a union, null last."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return [annotation]
    return sorted(get_args(annotation), key=lambda kind: kind is type(None))
