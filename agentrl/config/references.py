"""Resolves `${...}` and paths in values: the step between the merged recipe and the models."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.config.base import Section
from agentrl.config.recipe import Recipe
from agentrl.config.schema import accepts, find_field, nearest, path_kind
from agentrl.config.value_tree import Tree, get_value, leaves, set_value
from agentrl.errors import ConfigError
from agentrl.files import expand, find_file, find_input
from agentrl.yaml_reader import parse_scalar

_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
_ENVIRONMENT = "oc.env:"
_FILES = (".yaml", ".yml", ".json", ".jinja", ".py")
"""What ends so is a file that must exist; other inputs may be folders, globs, modules or names on a hub."""


class _UnresolvedError(Exception):
    """A reference that cannot be resolved; the message says why."""


def resolve_references(recipe: Recipe, model: type[Section]) -> None:
    """Replace every `${section.key}`, `${oc.env:NAME}`, `${oc.env:NAME,default}` and `${NAME}`, then resolve the paths.

    Problems are added to the recipe; the value then stays unchanged.
    """
    for key, value in list(leaves(recipe.tree)):
        try:
            resolved = _resolve_value(value, key, recipe.tree, model, ())
            set_value(recipe.tree, key, _find_paths(key, resolved, recipe, model))
        except _UnresolvedError as error:
            recipe.problems.append(f"{key}: {error}")


def _resolve_value(value: Any, key: str, tree: Tree, model: type[Section], visiting: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_resolve_value(item, key, tree, model, visiting) for item in value]
    if isinstance(value, dict):
        return {name: _resolve_value(item, key, tree, model, visiting) for name, item in value.items()}
    if not isinstance(value, str):
        return value
    whole = _REFERENCE.fullmatch(value)
    if whole:
        found = _look_up(whole.group(1).strip(), tree, model, visiting)
        field = find_field(model, key)
        wants_text = field is None or accepts(field, str)
        return found if wants_text or not isinstance(found, str) else parse_scalar(found)
    return _REFERENCE.sub(lambda match: _as_text(_look_up(match.group(1).strip(), tree, model, visiting)), value)


def _look_up(name: str, tree: Tree, model: type[Section], visiting: tuple[str, ...]) -> Any:
    if name.startswith(_ENVIRONMENT):
        variable, comma, default = name.removeprefix(_ENVIRONMENT).partition(",")
        return _environment(variable.strip(), default.strip() if comma else None)
    if "." not in name and name not in model.model_fields:
        return _environment(name, None)
    if name in visiting:
        raise _UnresolvedError(f"${{...}} refers to itself: {' -> '.join((*visiting, name))}")
    try:
        value = get_value(tree, name)
    except KeyError:
        raise _UnresolvedError(f"'${{{name}}}' does not name a key.{nearest(model, name)}") from None
    return _resolve_value(value, name, tree, model, (*visiting, name))


def _environment(variable: str, default: str | None) -> str:
    value = os.environ.get(variable, default)
    if value is None:
        raise _UnresolvedError(f"the environment variable {variable} is not set")
    return value


def _as_text(value: Any) -> str:
    if isinstance(value, (dict, list)):
        raise _UnresolvedError("a section or list cannot be part of a text")
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _find_paths(key: str, value: Any, recipe: Recipe, model: type[Section]) -> Any:
    field = find_field(model, key) or find_field(model, key.rpartition(".")[0])  # the latter: a mapping of paths
    kind = path_kind(field) if field is not None else None
    if kind is None:
        return value
    folder = recipe.folders.get(key)
    find: Callable[[str], str] = expand if kind.kind == "output" else lambda text: _find(text, folder)
    if isinstance(value, list):
        return [find(item) if isinstance(item, str) else item for item in value]
    return find(value) if isinstance(value, str) else value


def _find(text: str, folder: Path | None) -> str:
    # A chat template may be given as text, and its braces are no path.
    if not text or "\n" in text or "{%" in text:
        return text
    if not text.endswith(_FILES):
        return find_input(text, folder)
    try:
        return str(find_file(text, folder))
    except ConfigError as error:
        raise _UnresolvedError(str(error)) from None
