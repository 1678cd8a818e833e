"""Overrides of a command: `key=value`, and `+key=value`, `++key=value`, `~key` as Hydra writes them."""

from __future__ import annotations

from typing import Any

from agentrl.config.base import Section
from agentrl.config.problems import show_value
from agentrl.config.recipe import Recipe
from agentrl.config.schema import accepts, find_field, nearest
from agentrl.config.translate import is_known
from agentrl.config.value_tree import Tree, set_value
from agentrl.yaml_reader import parse_flow, parse_scalar


def apply_override(text: str, recipe: Recipe, model: type[Section]) -> None:
    """Lay one override over a recipe; one of another form becomes a problem of the recipe."""
    key, equals, value = text.partition("=")
    key, value, deletes = key.strip(), value.strip(), key.strip().startswith("~")
    key = key.lstrip("~" if deletes else "+").strip()
    if not key or not all(key.split(".")) or not (equals or deletes):
        recipe.problems.append(f"override '{text}': wanted `section.key=value`")
        return
    try:
        wanted = read_value(key, value, model)
    except ValueError as error:
        recipe.problems.append(f"override '{text}': {error}. Quote text that holds special characters")
        return
    if deletes:
        _delete(text, key, wanted, bool(equals), recipe, model)
        return
    tree: Tree = {}
    set_value(tree, key, wanted)
    recipe.take(tree, None, model)
    _tell_two_names(recipe, key, wanted)


def _tell_two_names(recipe: Recipe, key: str, value: Any) -> None:
    """Note that `actor_rollout_ref.rollout.n=8` replaces `algorithm.group_size=4`, given before it."""
    ours = recipe.renamed.get(key, key)
    before, given = recipe.named.get(ours, (key, value))
    if before != key and given != value:
        recipe.notes.append(f"{key}={show_value(value)} replaces {before}={show_value(given)}: two names of one key")
    recipe.named[ours] = (key, value)


def read_value(key: str, text: str, model: type[Section]) -> Any:
    """Read a value by YAML's rules; a value that looks like a number stays text if the key wants text.

    Raises:
        ValueError: it begins like a list, a mapping or quoted text, and is none.
    """
    if text[:1] in ("[", "{", "'", '"'):
        return parse_flow(text)
    field = find_field(model, key)
    if text == "" and field is not None and accepts(field, str):
        return ""
    value = parse_scalar(text)
    if "_" in text and (field is None or accepts(field, str)):
        return text  # two bounds, such as `0.5_2`, which YAML reads as 0.52; where a number is wanted it is read as one
    if field is not None and isinstance(value, (bool, int, float)) and accepts(field, str):
        kinds = (int, float) if isinstance(value, int) and not isinstance(value, bool) else (type(value),)
        return value if any(accepts(field, kind) for kind in kinds) else text
    return value


def _delete(text: str, key: str, wanted: Any, only_this: bool, recipe: Recipe, model: type[Section]) -> None:
    """Take back what files and earlier overrides gave, so that the default counts.

    Args:
        text: the override.
        key: what it names.
        wanted: with `only_this`, the value that is to be deleted, and no other.
        only_this: whether the override has a value.
        recipe: what was given.
        model: what agentrl knows.
    """
    given = recipe.given(key, model)
    if only_this and given and list(given.values()) != [wanted]:
        values = ", ".join(show_value(value) for value in given.values())
        recipe.problems.append(f"override '{text}': deletes {show_value(wanted)} only, but {key} is {values}")
    elif given:
        recipe.drop(key, model)
    elif is_known(key, model):
        recipe.notes.append(f"override '{text}' changes nothing: {key} was not given, so its default counts anyway")
    else:
        recipe.problems.append(f"override '{text}': unknown key.{nearest(model, key)}")
