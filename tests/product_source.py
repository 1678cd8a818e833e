"""The source of the product as syntax trees, for tests that follow its shape."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def syntax(path: Path) -> ast.Module:
    """The tree of a file, parsed once per process; do not change it."""
    source = path.read_text(encoding="utf-8")
    try:
        return ast.parse(source)
    except SystemError:  # CPython 3.11 counts the nesting of all threads' parsers together (python/cpython#106905)
        return ast.parse(source)
