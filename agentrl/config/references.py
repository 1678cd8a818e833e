"""Resolves `${...}` and paths in values: the step between the merged recipe and the models."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.config.base import Section
from agentrl.config.overrides import read_value
from agentrl.config.recipe import Recipe
from agentrl.config.schema import accepts, find_field, nearest, path_kind
from agentrl.config.translate import known_name
from agentrl.config.value_tree import get_value, leaves, set_value
from agentrl.errors import ConfigError, suggest
from agentrl.files import expand, find_file, find_input
from agentrl.yaml_reader import parse_scalar

_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
"""The innermost `${...}`: a default may hold another."""
_DEEPEST = 10
_RESOLVERS = ("oc.env", "oc.select", "oc.decode", "now", "hydra")
_FILES = (".yaml", ".yml", ".json", ".jinja", ".py")
"""What ends so is a file that must exist; other inputs may be folders, globs, modules or names on a hub."""


class _UnresolvedError(Exception):
    """A reference that cannot be resolved; the message says why."""


def resolve_references(recipe: Recipe, model: type[Section]) -> None:
    """Replace every `${...}`, then resolve the paths.

    ::

        ${section.key}, ${.key}, ${..key}       another value; with a dot one beside this, with two one section up
        ${oc.select:section.key,default}        the same, or the default where the key is not found
        ${oc.env:NAME}, ${oc.env:NAME,default}, ${NAME}    an environment variable

    Problems are added to the recipe; the value then stays unchanged.
    """
    resolver = _Resolver(recipe, model)
    for key, value in list(leaves(recipe.tree)):
        try:
            resolved = resolver.resolve(value, key, ())
            set_value(recipe.tree, key, _find_paths(key, resolved, recipe, model))
        except _UnresolvedError as error:
            recipe.problems.append(f"{key}: {error}")


class _Resolver:
    """Looks up what references name, in the values of a recipe and among verl's keys."""

    def __init__(self, recipe: Recipe, model: type[Section]) -> None:
        self._recipe = recipe
        self._model = model

    def resolve(self, value: Any, key: str, visiting: tuple[str, ...]) -> Any:
        """A value without references.

        Args:
            value: as it was written.
            key: the key that has it.
            visiting: the keys through which it was reached.
        """
        if isinstance(value, list):
            return [self.resolve(item, key, visiting) for item in value]
        if isinstance(value, dict):
            return {name: self.resolve(item, f"{key}.{name}", visiting) for name, item in value.items()}
        if not isinstance(value, str):
            return value
        for _ in range(_DEEPEST):
            if whole := _REFERENCE.fullmatch(value):
                return self._look_up(whole.group(1).strip(), key, visiting)
            if not _REFERENCE.search(value):
                break
            value = _REFERENCE.sub(lambda match: _as_text(self._look_up(match.group(1).strip(), key, visiting)), value)
        return value

    def _look_up(self, name: str, key: str, visiting: tuple[str, ...]) -> Any:
        kind, colon, rest = name.partition(":")
        if colon:
            return self._call(kind, rest, key, visiting)
        if "." not in name and name not in self._model.model_fields and name not in self._recipe.tree:
            return self._typed(_environment(name), key)
        return self._value(_absolute(name, key), visiting)

    def _call(self, kind: str, rest: str, key: str, visiting: tuple[str, ...]) -> Any:
        """The value of `${kind:rest}`."""
        argument, comma, default = (part.strip() for part in rest.partition(","))
        if kind == "oc.select":
            try:
                return self._value(_absolute(argument, key), visiting)
            except _NoSuchKeyError:
                return self._default(default, key) if comma else None
        if kind == "oc.env":
            if comma and argument not in os.environ:
                return self._default(default, key)
            return self._typed(_environment(argument), key)
        if kind == "oc.decode":
            return self._default(rest.strip(), key)
        if kind == "now":
            return time.strftime(rest)
        if kind == "hydra" and rest == "runtime.cwd":
            return os.getcwd()
        raise _UnresolvedError(f"'${{{kind}:{rest}}}' is no reference that agentrl knows.{suggest(kind, _RESOLVERS)}")

    def _value(self, name: str, visiting: tuple[str, ...]) -> Any:
        """The value of a key, by agentrl's or verl's name."""
        if name in visiting:
            raise _UnresolvedError(f"${{...}} refers to itself: {' -> '.join((*visiting, name))}")
        known = self._recipe.renamed.get(name) or known_name(name, self._model)
        foreign = self._recipe.foreign.get(name)
        try:
            value = foreign.value if foreign is not None else get_value(self._recipe.tree, known)
        except KeyError:
            raise _NoSuchKeyError(f"'${{{name}}}' does not name a key.{nearest(self._model, name)}") from None
        return self.resolve(value, name, (*visiting, name))

    def _typed(self, text: str, key: str) -> Any:
        """Text of the environment, as a number or the like where the key wants no text."""
        field = find_field(self._model, key)
        return text if field is None or accepts(field, str) else parse_scalar(text)

    def _default(self, text: str, key: str) -> Any:
        """A default that a reference gives."""
        if text in ("null", "None"):
            return None
        try:
            return read_value(key, text, self._model)
        except ValueError as error:
            raise _UnresolvedError(f"the default {text} cannot be read: {error}") from None


class _NoSuchKeyError(_UnresolvedError):
    """A reference to a key that is not found."""


def _absolute(name: str, key: str) -> str:
    """A name with dots in front as a whole key: `${.b}` in `x.a` is `x.b`, `${..b}` in `x.y.a` is `x.b`."""
    plain = name.lstrip(".")
    up = len(name) - len(plain)
    parts = key.split(".")
    return ".".join([*parts[: max(0, len(parts) - up)], plain]) if up else plain


def _environment(variable: str) -> str:
    value = os.environ.get(variable)
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
    if kind.kind == "plugin":
        return find_input(value, folder) if isinstance(value, str) and ".py:" in value else value
    find: Callable[[str], str] = (
        expand if kind.kind == "output" else lambda text: _find(text, folder, must_exist=kind.kind == "input")
    )
    if isinstance(value, list):
        return [find(item) if isinstance(item, str) else item for item in value]
    return find(value) if isinstance(value, str) else value


def _find(text: str, folder: Path | None, *, must_exist: bool) -> str:
    # A chat template may be given as text, and its braces are no path.
    if not text or "\n" in text or "{%" in text:
        return text
    if not text.endswith(_FILES):
        return find_input(text, folder)
    try:
        return str(find_file(text, folder))
    except ConfigError as error:
        if not must_exist:
            return expand(text)
        raise _UnresolvedError(str(error)) from None
