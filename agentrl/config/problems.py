"""The problems in a tree of plain values, in words: unknown keys and values of the wrong kind."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from agentrl.config.base import Section
from agentrl.config.other_names import called_here
from agentrl.config.schema import describe_field, find_field, is_free, nearest
from agentrl.config.value_tree import Tree, drop_value, get_value, leaves


def take_unknown(tree: Tree, model: type[Section]) -> dict[str, str]:
    """Remove unknown keys from the tree; returns one problem per key."""
    problems: dict[str, str] = {}
    for key, value in list(leaves(tree)):
        unknown = _unknown_part(model, key)
        if unknown is not None and unknown not in problems:
            given = show_value(value) if unknown == key else "a section"
            ours = called_here(key, model) or called_here(unknown, model)
            hint = f" It is '{ours}' here." if ours else nearest(model, unknown)
            problems[unknown] = f"{unknown}: unknown key (given {given}).{hint}"
            drop_value(tree, unknown)
    return problems


def _unknown_part(model: type[Section], key: str) -> str | None:
    """The shortest unknown prefix of a key; None if the keys are known and only a type is wrong."""
    # `trainer.helth.window` -> `trainer.helth`: one message for the misspelt section, not one for each key in it.
    parts = key.split(".")
    for end in range(1, len(parts) + 1):
        front = ".".join(parts[:end])
        field = find_field(model, front)
        if field is None:
            parent = find_field(model, ".".join(parts[: end - 1])) if end > 1 else None
            below_leaf = parent is not None and not describe_field(parent).startswith("a section")
            return None if below_leaf or is_free(model, front) else front
    return None


def validate(tree: Tree, model: type[Section]) -> tuple[Section | None, dict[str, str]]:
    """Check values against a model without any silent conversion.

    Returns:
        The model, or None and one problem per wrong key.
    """
    try:
        # Strict JSON mode takes no "3" for 3 and no true for 1, but still a list for a tuple.
        return model.model_validate_json(json.dumps(tree), strict=True), {}
    except ValidationError as error:
        problems: dict[str, str] = {}
        for detail in error.errors():
            key = _field_of(detail["loc"], model)
            if key not in problems:
                problems[key] = _explain(key, detail, tree, model)
        return None, problems


def _field_of(loc: tuple[int | str, ...], model: type[Section]) -> str:
    """The longest prefix of an error's location that is a key; the rest are list positions and union members."""
    key = ""
    for part in loc:
        longer = f"{key}.{part}" if key else str(part)
        if find_field(model, longer) is None:
            break
        key = longer
    return key


def _explain(key: str, detail: Any, tree: Tree, model: type[Section]) -> str:
    field = find_field(model, key)
    try:
        given = show_value(get_value(tree, key))
    except KeyError:
        given = "nothing"
    if detail["type"] == "value_error":
        return f"{key}: got {given}, but {detail['ctx']['error']}"
    python = "; nothing is written null" if given == "'None'" else ""
    return f"{key}: got {given}, wanted {describe_field(field)}{python}" if field else f"{key}: {detail['msg']}"


def show_value(value: Any) -> str:
    """A value as its user wrote it, shortened."""
    if isinstance(value, dict):
        return "a section" if value else "an empty section"
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = f"'{value}'" if isinstance(value, str) else text
    return text if len(text) <= 80 else f"{text[:76]} …"
