"""From files and overrides to one tree of plain values, with the folder in which each value was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.config.base import Section
from agentrl.config.schema import accepts, describe_field, find_field, section_of
from agentrl.config.value_tree import Tree, leaves, set_value
from agentrl.config.verl_keys import Foreign, settle_foreign, translate
from agentrl.errors import ConfigError
from agentrl.files import CONFIGS, find_file, put_on_import_path
from agentrl.yaml_reader import parse_flow, parse_scalar, read_yaml

SELF = "_self_"
DUMP_MARK = "# Every key of a run, defaults included.\n"
"""First line of a dump: the values in it that are defaults were written by nobody."""
VERL_DEFAULTS = frozenset({"ppo_trainer", "ppo_megatron_trainer"})
"""Names of verl's own base configurations: agentrl's defaults replace them."""


@dataclass
class Recipe:
    """Merged values of a run, before they are checked against the models."""

    tree: Tree = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    """Folder of the YAML that a dotted key was last given in; absent for overrides."""
    renamed: dict[str, str] = field(default_factory=dict)
    """agentrl's key by the key of verl that was given."""
    foreign: dict[str, Foreign] = field(default_factory=dict)
    """Keys of verl that agentrl lacks, as each was given last."""
    idle: dict[str, str] = field(default_factory=dict)
    """Why a key that was given has no effect."""
    shipped: set[str] = field(default_factory=set)
    """Keys that agentrl's own recipes gave last: the user did not write them."""
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def told(self) -> list[str]:
        """Notes on other names of keys and on includes."""
        names = "; ".join(f"{old} is called '{new}' here" for old, new in self.renamed.items())
        return [*self.notes, *([names] if names else [])]

    def merge(self, tree: Tree, folder: Path | None, model: type[Section]) -> None:
        """Merge values over the present ones: mappings are merged, everything else is replaced."""
        for key, value in leaves(tree):
            known = find_field(model, key)
            if known is not None and section_of(known):
                if isinstance(value, str) and value.startswith("${"):
                    set_value(self.tree, key, value)
                elif value:  # `critic:` with nothing below it is allowed and changes nothing
                    self.problems.append(f"{key}: got {value!r}, wanted {describe_field(known)}")
                continue
            set_value(self.tree, key, value)
            is_ours = folder is not None and CONFIGS.resolve() in (folder, *folder.parents)
            (self.shipped.add if is_ours else self.shipped.discard)(key)
            if folder is None:
                self.folders.pop(key, None)
            else:
                self.folders[key] = folder

    def take(self, tree: Tree, folder: Path | None, model: type[Section], where: str = "") -> None:
        """Merge values as they were written, with verl's names of keys."""
        own, renamed, foreign = translate(tree, model, where)
        self.merge(own, folder, model)
        self.renamed |= renamed
        self.foreign |= {given.key: given for given in foreign}

    def settle(self, model: type[Section]) -> None:
        """Judge verl's keys, now that all of them are known."""
        used, self.idle, problems = settle_foreign(self.foreign, {key for key, _ in leaves(self.tree)})
        self.problems += problems
        for key, given in used.items():
            values: Tree = {}
            set_value(values, key, given.value)
            self.merge(values, None, model)
            self.renamed[given.key] = key


def read_recipe(source: str | Path | Mapping[str, Any] | None, overrides: list[str], model: type[Section]) -> Recipe:
    """Read a recipe with everything that it includes, then apply the overrides.

    Raises:
        ConfigError: a file cannot be found or read, or includes itself.
    """
    recipe = Recipe()
    if isinstance(source, Mapping):
        _lay(_plain(source, ""), None, (), recipe, model)
    elif source is not None:
        file = find_file(source, suffix=".yaml")
        put_on_import_path(file.parent)
        _read_file(file, (), recipe, model)
    for override in overrides:
        _apply_override(override, recipe, model)
    recipe.settle(model)
    return recipe


def _read_file(path: Path, including: tuple[Path, ...], recipe: Recipe, model: type[Section]) -> None:
    path = path.resolve()
    if path in including:
        chain = " -> ".join(str(file) for file in (*including, path))
        raise ConfigError(f"`defaults` includes itself: {chain}")
    tree = {} if (content := read_yaml(path)) is None else content
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: holds a {type(tree).__name__}, wanted a mapping of sections")
    _lay(tree, path, (*including, path), recipe, model)


def _lay(tree: Tree, path: Path | None, including: tuple[Path, ...], recipe: Recipe, model: type[Section]) -> None:
    """Lay what a file (None: a mapping) includes, and its own values, over the recipe."""
    folder, where = (path.parent, str(path)) if path is not None else (None, "the mapping")
    for name in _included(tree.pop("defaults", None), where):
        if name == SELF:
            recipe.take(tree, folder, model, where)
            if path is not None and path.read_text(encoding="utf-8").startswith(DUMP_MARK):
                recipe.shipped |= _defaults_in(tree, model)
        elif name in VERL_DEFAULTS:
            recipe.notes.append(f"{where}: agentrl's own defaults replace verl's '{name}'")
        else:
            _read_file(find_file(name, folder, ".yaml"), including, recipe, model)


def _defaults_in(tree: Tree, model: type[Section]) -> set[str]:
    """Keys that have their default."""
    defaults = dict(leaves(model.model_construct().model_dump(mode="json")))
    return {key for key, value in leaves(tree) if key in defaults and defaults[key] == value}


def _plain(value: Any, key: str) -> Any:
    """A Python value in the form that YAML gives: paths are text, tuples are lists.

    Raises:
        ConfigError: a key is not text, or YAML has no such value.
    """
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise ConfigError(f"{key or 'the mapping'}: got the key {name!r}, wanted text")
        return {name: _plain(item, f"{key}.{name}".lstrip(".")) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, key) for item in value]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ConfigError(f"{key}: got {value!r}, wanted text, a number, true, false, null, a list or a section")


def _included(given: Any, where: str) -> list[str]:
    """Names in `defaults`; `_self_` (the file's own values) comes last unless the list names it."""
    names = [given] if isinstance(given, str) else ([] if given is None else given)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where}: defaults: got {given!r}, wanted a list of recipe names")
    return names if SELF in names else [*names, SELF]


def _apply_override(text: str, recipe: Recipe, model: type[Section]) -> None:
    key, equals, value = text.partition("=")
    key = key.strip()
    if key.startswith("~"):
        recipe.problems.append(
            f"override '{text}': agentrl cannot delete a key (`~key`); set it to its default instead"
        )
        return
    key = key.lstrip("+").strip()
    if not equals or not key or not all(key.split(".")):
        recipe.problems.append(f"override '{text}': wanted `section.key=value`")
        return
    tree: Tree = {}
    try:
        set_value(tree, key, _override_value(key, value.strip(), model))
    except ValueError as error:
        recipe.problems.append(f"override '{text}': {error}. Quote text that holds special characters")
        return
    recipe.take(tree, None, model)


def _override_value(key: str, text: str, model: type[Section]) -> Any:
    """Read a value by YAML's rules; a value that looks like a number stays text if the key wants text."""
    if text[:1] in ("[", "{", "'", '"'):
        return parse_flow(text)
    field = find_field(model, key)
    if text == "" and field is not None and accepts(field, str):
        return ""
    value = parse_scalar(text)
    if field is not None and isinstance(value, (bool, int, float)) and accepts(field, str):
        kinds = (int, float) if isinstance(value, int) and not isinstance(value, bool) else (type(value),)
        return value if any(accepts(field, kind) for kind in kinds) else text
    return value
