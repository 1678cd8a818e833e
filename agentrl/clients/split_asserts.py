"""Takes the expected values out of asserts, for a sandbox that runs a program and its asserts in one process.

`assert f(1) == 2` becomes code that prints what `f(1)` is, and the value 2, which stays here.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from typing import Any

_COLLECT = """
_values_{mark} = []

def _tell_{mark}(value, exact=False):
    from builtins import bool, bytearray, bytes, complex, float, int, str
    from builtins import hasattr, isinstance, list, map, repr, tuple, type
    from collections.abc import Mapping, Set
    from numbers import Number

    tell, kind = _tell_{mark}, type(value)
    if exact and kind.__module__ != "builtins":
        return "<another type>"
    if value is ...:
        return "..."
    if value is None or kind is bool:
        return repr(value)
    if kind.__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        plain = value.tolist()
        if type(plain) is not kind:
            return tell(plain)
    if isinstance(value, int):
        return int.__format__(value, "#x")
    if isinstance(value, float):
        return float.__repr__(value).replace("inf", "1e999")
    for base in (complex, str, bytes):
        if isinstance(value, base):
            return base.__repr__(value)
    if isinstance(value, bytearray):
        return repr(bytes(value))
    if isinstance(value, list):
        return "[" + ", ".join(map(tell, list.__iter__(value))) + "]"
    if isinstance(value, tuple):
        return "(" + "".join(tell(part) + ", " for part in tuple.__iter__(value)) + ")"
    if isinstance(value, Mapping):
        return "{{" + ", ".join(tell(key) + ": " + tell(part) for key, part in value.items()) + "}}"
    if isinstance(value, Set):
        return "{{" + ", ".join(map(tell, value)) + "}}" if value else "set()"
    if isinstance(value, Number):
        for plain in (float, int):
            try:
                if plain(value) == value:
                    return tell(plain(value))
            except (TypeError, ValueError, OverflowError):
                pass
    return "<no literal>"
"""
"""Collects values as source text, each as it is at its assert; what equals no literal becomes text that is none."""
_SAY_VALUES = """
__import__("sys").__stdout__.write("\\n{mark}" + __import__("json").dumps(_values_{mark}) + "\\n")
"""
_PASSED = """
def _passed_unittest(program):
    assert program.result.wasSuccessful(), "a test failed"

"""
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class SplitCheck:
    """A check without what it expects.

    Attributes:
        code: runs after the program and prints, behind the mark, a JSON list with the source text of each value.
        wanted: what the values must be equal to.
        exact: for each assert whether the types must be the same too, as for `is`.
        said: the text of each assert, empty where it has none.
    """

    code: str
    wanted: list[Any]
    exact: list[bool]
    said: list[str]

    def failure(self, told: Any) -> str | None:
        """What Python would say of the first assert that does not hold; None: all hold.

        Args:
            told: what was printed behind the mark.
        """
        values = told if isinstance(told, list) else []
        for place, (wanted, exact, said) in enumerate(zip(self.wanted, self.exact, self.said, strict=True)):
            given = _literal(values[place]) if place < len(values) else _NOTHING
            if given != wanted or (exact and type(given) is not type(wanted)):
                return f"AssertionError: {said}".removesuffix(": ")
        return None


def split_asserts(check: str, mark: str) -> SplitCheck | None:
    """Take a check apart; None if one of its asserts is neither `assert VALUE == LITERAL` nor `is CONSTANT`.

    Args:
        check: Python code.
        mark: a word that the program does not know beforehand.
    """
    tree = parse_check(check)
    wanted, exact, said, body = [], [], [], list[ast.stmt]()
    for node in tree.body:
        if not isinstance(node, ast.Assert):
            if any(isinstance(part, ast.Assert) for part in ast.walk(node)):
                return None
            body.append(node)
            continue
        pair = _split(node.test)
        if pair is None:
            return None
        wanted.append(pair[1])
        exact.append(isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.Is))
        said.append(str(node.msg.value) if isinstance(node.msg, ast.Constant) else "")
        told = f"_values_{mark}.append(_tell_{mark}({ast.unparse(pair[0])}, {exact[-1]}))"
        body.append(ast.parse(told).body[0])
    if not wanted:
        return None
    code = "\n".join((_COLLECT.format(mark=mark), ast.unparse(ast.Module(body, [])), _SAY_VALUES.format(mark=mark)))
    return SplitCheck(code, wanted, exact, said)


def with_checked_unittest(check: str) -> str:
    """A check whose `unittest.main()` does not end the process, and fails when a test does: code may follow it."""
    if "unittest.main" not in check:
        return check
    tree = parse_check(check)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func) == "unittest.main"
        ):
            options = [option for option in node.value.keywords if option.arg != "exit"]
            node.value.keywords = [*options, ast.keyword("exit", ast.Constant(False))]
            node.value = ast.parse(f"_passed_unittest({ast.unparse(node.value)})", mode="eval").body
    return f"{_PASSED}{ast.unparse(tree)}"


def parse_check(check: str) -> ast.Module:
    """A check as Python reads it.

    Raises:
        ValueError: it is not Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(check)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"got the assert {check!r:.200}, which is not Python: {error}") from None


def _split(test: ast.expr) -> tuple[ast.expr, Any] | None:
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.Is)):
        return None
    for given, wanted in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
        if isinstance(test.ops[0], ast.Is) and not isinstance(wanted, ast.Constant):
            continue
        try:
            return given, ast.literal_eval(wanted)
        except (ValueError, TypeError):
            continue
    return None


def _literal(told: Any) -> Any:
    try:
        return ast.literal_eval(told) if isinstance(told, str) else _NOTHING
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _NOTHING
