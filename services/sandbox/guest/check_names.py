"""Names that a check uses, and which of them are its own; found in the code, without running it."""

from __future__ import annotations

import ast
import re
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MODULES = frozenset(
    (
        *("abc", "array", "bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum"),
        *("fractions", "functools", "heapq", "itertools", "json", "math", "numbers", "numpy", "operator", "random"),
        *("re", "statistics", "string", "sys", "textwrap", "time", "typing", "collections.abc"),
    )
)
"""What a program imports from here, the check gets from here too, unchanged."""
HELPERS = {"isclose": "math", "deepcopy": "copy", "Counter": "collections"}
"""What checks use of the standard library without an import of their own."""


def identifiers(tree: ast.Module) -> set[str]:
    """Names in a check, those in its texts too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.update(re.findall(r"[^\W\d]\w*", node.value[:10_000]))  # globals()["f"]
    return {name for name in found if not name.startswith("__")}


def helpers(tree: ast.Module, names: Iterable[str]) -> dict[str, Any]:
    """What the check takes from the standard library, of these names: `math.isclose`, but not `queue(1)`."""
    nodes = list(ast.walk(tree))
    sides = [[node.left, *node.comparators] for node in nodes if isinstance(node, ast.Compare)]
    found = {}
    for name in names:
        uses = sum(_is(node, name) for node in nodes)
        parts = [node.attr for node in nodes if isinstance(node, ast.Attribute) and _is(node.value, name)]
        compared = [one for both in sides if all(_is(getattr(one, "func", one), name) for one in both) for one in both]
        if name in HELPERS and (name != "Counter" or len(compared) == uses > 0):  # Counter(f(1)) == Counter([2])
            found[name] = getattr(__import__(HELPERS[name]), name)
        elif len(parts) == uses > 0 and (name == "np" or name in sys.stdlib_module_names | MODULES):
            with suppress(ImportError):
                module = __import__("numpy" if name == "np" else name)
                found.update({name: module} if all(hasattr(module, part) for part in parts) else {})
    return found


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def imported(program: str, used: set[str]) -> dict[str, Any]:
    """What the program imports, of the names that the check uses; found without running it."""
    try:
        nodes = ast.parse(program).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                if name in used and alias.name in MODULES:
                    module = __import__(alias.name)
                    found[name] = sys.modules[alias.name] if alias.asname else module
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES and not node.level:
            module = __import__(node.module, fromlist=["*"])
            for alias in node.names:
                names = used & vars(module).keys() if alias.name == "*" else {alias.name}
                for name in names:
                    kept = alias.asname or name
                    if kept in used and hasattr(module, name) and not name.startswith("_"):
                        found[kept] = getattr(module, name)
    return found
