"""From files and overrides to one tree of plain values, with the folder in which each value was written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.config.base import Section
from agentrl.config.engine_choice import settle_engine
from agentrl.config.problems import show_value
from agentrl.config.schema import describe_field, find_field, section_of
from agentrl.config.translate import settle_foreign, translate, translate_values
from agentrl.config.value_tree import Tree, drop_value, leaves, set_value
from agentrl.config.verl_keys import Foreign
from agentrl.files import CONFIGS


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
    replaced: dict[str, None] = field(default_factory=dict)
    """Names of verl's own configurations in whose place agentrl's defaults stand."""
    values: dict[str, str] = field(default_factory=dict)
    """Notes on values of verl that mean another one here, by key."""
    named: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """By agentrl's key: the name under which an override gave it last, and the value."""
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def told(self) -> list[str]:
        """Notes on other names of keys and on includes."""
        names = "; ".join(f"{old} is called '{new}' here" for old, new in self.renamed.items())
        replaced = ", ".join(f"'{name}'" for name in self.replaced)
        stand_in = [f"agentrl's own defaults replace verl's {replaced}"] if replaced else []
        return [*self.notes, *stand_in, *filter(None, self.values.values()), *([names] if names else [])]

    def merge(self, tree: Tree, folder: Path | None, model: type[Section]) -> None:
        """Merge values over the present ones: mappings are merged, everything else is replaced."""
        for key, value in leaves(tree):
            known = find_field(model, key)
            if known is not None and section_of(known):
                if isinstance(value, str) and value.startswith("${"):
                    set_value(self.tree, key, value)
                elif value:  # `critic:` with nothing below it is allowed and changes nothing
                    self.problems.append(f"{key}: got {show_value(value)}, wanted {describe_field(known)}")
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
        self.values |= translate_values(own)
        self.merge(own, folder, model)
        self.renamed |= renamed
        self.foreign |= {given.key: given for given in foreign}

    def given(self, key: str, model: type[Section]) -> dict[str, Any]:
        """What was given for a key or within a section, by the names that the user wrote."""
        own = translate(_single(key), model)[0]
        ours = {name: value for name, value in leaves(self.tree) for new, _ in leaves(own) if _within(name, new)}
        return ours | {name: given.value for name, given in self.foreign.items() if _within(given.written or name, key)}

    def drop(self, key: str, model: type[Section]) -> None:
        """Forget what was given for a key or within a section."""
        for name in self.given(key, model):
            drop_value(self.tree, name)
            self.folders.pop(name, None)
            self.shipped.discard(name)
            self.foreign.pop(name, None)
            self.renamed = {old: new for old, new in self.renamed.items() if new != name}

    def settle(self, model: type[Section]) -> None:
        """Judge verl's keys, now that all of them are known."""
        used, self.idle, problems = settle_foreign(self.foreign, {key for key, _ in leaves(self.tree)})
        self.problems += problems
        for key, given in used.items():
            values: Tree = {}
            set_value(values, key, given.value)
            self.merge(values, None, model)
            self.renamed[given.key] = key
        self.values |= settle_engine(self.tree)


def _single(key: str) -> Tree:
    tree: Tree = {}
    set_value(tree, key, None)
    return tree


def _within(key: str, section: str) -> bool:
    return key == section or key.startswith(f"{section}.")
