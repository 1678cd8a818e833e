"""Finds checks that pass for every program, because nothing in them can fail."""

from __future__ import annotations

import ast
import re

_REMEDY = {
    "python": "`assert f(1) == 2`, and a call of the function that holds the asserts: `check(f)`",
    "nodejs": "`assert(f(1) === 2)` or another statement that throws",
    "perl": "`die unless f(1) == 2;` or `is(f(1), 2);`",
}
_TEXT = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`(?:\\.|[^`\\])*`")
_BRACKETS = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
_VALUE = r"\s*[\w$@-][\w.$@\0-]*\s*"
_COMPARISON = re.compile(rf"{_VALUE}(?:[=!]==?|\b(?:eq|ne)\b){_VALUE}")
_FAILS = re.compile(r"\b(?:assert|throw|die|exit|expect)\b")


def must_test(check: str, language: str) -> None:
    """Refuse a check in which nothing can fail; one that this cannot tell is let through.

    Args:
        check: the code that follows a program; of Python, code that Python can read.
        language: of both.

    Raises:
        ValueError: every program would pass.
    """
    if language == "python":
        empty = not _can_fail(ast.parse(check).body)
    else:
        empty = language in _REMEDY and _only_compares(check)
    if empty:
        raise ValueError(
            f"got the assert {check!r:.200}, in which nothing can fail, so that every program would pass; "
            f"wanted {_REMEDY[language]}"
        )


def _can_fail(body: list[ast.stmt]) -> bool:
    """Whether running these statements may fail; the body of a function does not run by being defined."""
    return any(_statement_can_fail(node) for node in body)


def _statement_can_fail(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Pass | ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    if isinstance(node, ast.ClassDef):  # also a unittest.TestCase, which nobody runs
        return _can_fail(node.body)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return node.value is not None and any(isinstance(part, ast.Call) for part in ast.walk(node.value))
    return not (isinstance(node, ast.Expr) and _is_lost(node.value))


def _is_lost(value: ast.expr) -> bool:
    """A value that is computed and thrown away, as in the line `f(1) == 2`."""
    if isinstance(value, ast.BoolOp):
        return all(map(_is_lost, value.values))
    if isinstance(value, ast.UnaryOp):
        return isinstance(value.op, ast.Not) and _is_lost(value.operand)
    return isinstance(value, ast.Compare | ast.Constant | ast.Name)


def _only_compares(check: str) -> bool:
    """Whether all statements are of the form `f(1) === 2`."""
    text = _TEXT.sub("x", check)
    if _FAILS.search(text):
        return False
    while (shorter := _BRACKETS.sub("\0", text)) != text:
        text = shorter
    statements = [part for part in re.split(r"[;\n]", text) if part.strip()]
    return bool(statements) and all(map(_COMPARISON.fullmatch, statements))
