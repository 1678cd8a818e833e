"""Reads a recipe: its file, what that includes, and the overrides of the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.config.base import Section
from agentrl.config.includes import (
    SELF,
    VERL_NAMES,
    Include,
    find_include,
    header_package,
    is_of_verl,
    key_below,
    read_defaults,
    search_folders,
)
from agentrl.config.other_trainers import refuse_other_command, refuse_other_trainer
from agentrl.config.overrides import apply_override
from agentrl.config.recipe import Recipe
from agentrl.config.translate import is_known
from agentrl.config.value_tree import Tree, leaves, set_value
from agentrl.errors import ConfigError
from agentrl.files import expand, find_file, put_on_import_path
from agentrl.yaml_reader import parse_flow, read_yaml

DUMP_MARK = "# Every key of a run, defaults included.\n"
"""First line of a dump: the values in it that are defaults were written by nobody."""
_SEARCH = "hydra.searchpath"


def named_recipe(folder: str | None, name: str | None, usual: str = "ppo_trainer") -> Path:
    """The recipe that Hydra's `--config-path` and `--config-name` mean.

    Args:
        folder: from the working folder; None: recipes are looked up as everywhere.
        name: of the file, with or without `.yaml`; None: `usual`, else the only YAML file of the folder.
        usual: the name that commands leave out.

    Raises:
        ConfigError: the folder is not found, or has several files and no name says which.
    """
    if folder is None:
        return Path(name or usual)
    place = Path(expand(folder))
    if not place.is_dir():
        raise ConfigError(f"--config-path: got '{folder}', which is no folder (working folder: {Path.cwd()})")
    files = sorted(file for file in place.iterdir() if file.suffix in (".yaml", ".yml") and file.is_file())
    if name is not None or usual in {file.stem for file in files} or not files:
        return place / (name or usual)
    if len(files) > 1:
        names = ", ".join(file.stem for file in files)
        raise ConfigError(f"--config-path: {folder} has no {usual}.yaml: choose one by --config-name ({names})")
    return files[0]


def read_recipe(
    source: str | Path | Mapping[str, Any] | None, overrides: Sequence[str], model: type[Section]
) -> Recipe:
    """Read a recipe with everything that it includes, then apply the overrides.

    Raises:
        ConfigError: a file cannot be found or read, or includes itself.
    """
    recipe = Recipe()
    files = _Files(recipe, model, overrides)
    if isinstance(source, Mapping):
        files.lay(_plain(source, ""), None, "", ())
    elif source is not None:
        files.read_first(source)
    else:
        files.lay({}, None, "", ())
    recipe.problems += files.unused()
    for override in files.left:
        apply_override(override, recipe, model)
    recipe.settle(model)
    return recipe


class _Files:
    """Lays files over a recipe, each after those that it includes.

    Args:
        recipe: what they are laid over.
        model: the keys that agentrl knows.
        overrides: of the command. Those that choose a file (`FOLDER@section=NAME`) or a search folder act here.
    """

    def __init__(self, recipe: Recipe, model: type[Section], overrides: Sequence[str]) -> None:
        self._recipe = recipe
        self._model = model
        self._roots: list[Path] = []
        self._chosen: dict[str, Include] = {}
        self._used: set[str] = set()
        self._added: list[Include] = []
        self.left = [text for text in overrides if not self._takes(text)]
        """The overrides that set values."""

    def read_first(self, source: str | Path) -> None:
        """Read the recipe that the user names; verl's own base configuration means agentrl's defaults."""
        name = Path(source).stem
        path: Path | None = None
        try:
            path = find_file(source, suffix=".yaml")
        except ConfigError:
            if name not in VERL_NAMES:
                raise
        if path is None or is_of_verl(path):
            self._recipe.replaced[name] = None
            self.lay({}, None, "", ())
            return
        put_on_import_path(path.parent)
        self._roots.append(path.resolve().parent)
        self._read(path, "", ())

    def unused(self) -> list[str]:
        """Problems of choices that no `defaults` list has; the lists of verl's own files are not here."""
        left = {target: entry for target, entry in self._chosen.items() if target not in self._used}
        ours = {target: entry for target, entry in left.items() if entry.name not in VERL_NAMES}
        self._recipe.replaced |= {str(left[target].name): None for target in left.keys() - ours.keys()}
        return [
            f"{entry.group}={entry.name}: no `defaults` list has an entry for '{target}': add one by +{entry.group}"
            for target, entry in ours.items()
        ]

    def lay(self, tree: Tree, path: Path | None, package: str, including: tuple[Path, ...]) -> None:
        """Lay what a file (None: a mapping) includes, and its own values, over the recipe."""
        folder, where = (path.parent, str(path)) if path is not None else (None, "the mapping")
        if not including[1:]:
            refuse_other_command(where, tree, self._model)
        self._roots += search_folders(_take_search_path(tree), folder)
        entries = read_defaults(tree.pop("defaults", None), where)
        for entry in entries:  # the first file that overrides a choice is the outermost
            if entry.override and not entry.is_hydras:
                self._chosen.setdefault(entry.target(package), entry)
        for entry in [*entries, *(() if including[1:] else self._added)]:
            if entry.name == SELF and not entry.group:
                self._take(tree, path, package, where)
            elif not entry.override or entry.is_hydras:
                self._include(entry, folder, package, including, where)

    def _takes(self, override: str) -> bool:
        """Whether an override was one of `_chosen`, `_added` or the search path; values are for others."""
        key, equals, value = override.partition("=")
        key, value = key.strip(), value.strip()
        if key.lstrip("+") == _SEARCH:
            with suppress(ValueError):
                self._roots += search_folders(parse_flow(value), None)
                return True
        if equals and ("/" in key or "@" in key) and not (key.startswith("~") or is_known(key, self._model)):
            group, at, package = key.lstrip("+").partition("@")
            entry = Include(group, None if value == "null" else value, package if at else None)
            if key.startswith("+"):
                self._added.append(entry)
            elif not entry.is_hydras:
                self._chosen[entry.target("")] = entry
            return True
        return False

    def _read(self, path: Path, package: str, including: tuple[Path, ...]) -> None:
        path = path.resolve()
        if path in including:
            chain = " -> ".join(str(file) for file in (*including, path))
            raise ConfigError(f"`defaults` includes itself: {chain}")
        tree = {} if (content := read_yaml(path)) is None else content
        if not isinstance(tree, dict):
            raise ConfigError(f"{path}: holds a {type(tree).__name__}, wanted a mapping of sections")
        keys = [key for key, _ in leaves(tree)]
        if twice := next((key for position, key in enumerate(keys) if key in keys[:position]), None):
            raise ConfigError(f"{path}: key '{twice}' is given twice")
        self.lay(tree, path, package, (*including, path))

    def _include(
        self, entry: Include, folder: Path | None, package: str, including: tuple[Path, ...], where: str
    ) -> None:
        target = entry.target(package)
        if entry.is_hydras:
            self._recipe.take({"hydra": {"defaults": entry.name}}, None, self._model)
            return
        if entry.group and target in self._chosen:
            self._used.add(target)
            entry = replace(entry, name=self._chosen[target].name)
        if entry.name is None:
            return
        path = find_include(entry, folder, self._roots, where)
        if path is not None:
            self._read(path, entry.target(package, header_package(path.read_text(encoding="utf-8"))), including)
        elif not entry.optional:
            self._recipe.replaced[entry.name] = None

    def _take(self, tree: Tree, path: Path | None, package: str, where: str) -> None:
        if path is not None and not package:
            refuse_other_trainer(path, tree, self._model)
        placed: Tree = {}
        for key, value in leaves(tree):
            set_value(placed, key_below(package, key), value)
        self._recipe.take(placed, None if path is None else path.parent, self._model, where)
        if path is not None and path.read_text(encoding="utf-8").startswith(DUMP_MARK):
            defaults = dict(leaves(self._model.model_construct().model_dump(mode="json")))
            self._recipe.shipped |= {key for key, value in leaves(tree) if defaults.get(key, placed) == value}


def _take_search_path(tree: Tree) -> Any:
    """Remove `hydra.searchpath` from a file's values; None: it has none."""
    hydra = tree.get("hydra")
    if isinstance(hydra, dict) and "searchpath" in hydra:
        given = hydra.pop("searchpath")
        if not hydra:
            del tree["hydra"]
        return given
    return tree.pop(_SEARCH, None)


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
