"""Nested mappings of plain values, addressed by dotted keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Tree = dict[str, Any]


def leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is not a mapping (or is an empty one), with its dotted key."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def set_value(tree: Tree, key: str, value: Any) -> None:
    """Set a dotted key, creating the mappings above it."""
    *parents, last = key.split(".")
    for parent in parents:
        below = tree.get(parent)
        if not isinstance(below, dict):
            below = tree[parent] = {}
        tree = below
    tree[last] = value


def get_value(tree: Tree, key: str) -> Any:
    """Value at a dotted key. Raises KeyError."""
    value: Any = tree
    for part in key.split("."):
        if not isinstance(value, dict):
            raise KeyError(key)
        value = value[part]
    return value


def drop_value(tree: Tree, key: str) -> None:
    """Remove a dotted key, if it exists."""
    *parents, last = key.split(".")
    for parent in parents:
        tree = tree.get(parent, {})
        if not isinstance(tree, dict):
            return
    tree.pop(last, None)
