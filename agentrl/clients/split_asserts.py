"""Takes the expected values out of asserts, for a sandbox that runs a program and its asserts in one process.

`assert f(1) == 2` becomes code that prints what `f(1)` is, and the value 2, which stays here.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from typing import Any

_TELL = """
def _{mark}():
    import json, sys

    def plain(value):
        if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
            return value.tolist()
        for kind, parts in ((dict, lambda one: {{key: plain(part) for key, part in one.items()}}),
                            (tuple, lambda one: tuple(map(plain, one))), (list, lambda one: list(map(plain, one))),
                            (set, set), (frozenset, set), (bool, bool), (int, int), (float, float), (str, str)):
            if isinstance(value, kind):
                return parts(value)
        return value

    sys.set_int_max_str_digits(0)
    sys.__stdout__.write("\\n{mark}" + json.dumps(repr([plain(value) for value in _values_{mark}])) + "\\n")

_{mark}()
"""


_PASSED = """
def _passed_unittest(program):
    assert program.result.wasSuccessful(), "a test failed"

"""


@dataclass(frozen=True, slots=True)
class SplitCheck:
    """A check without what it expects.

    Attributes:
        code: runs after the program and prints, behind the mark, JSON text with the `repr` of a list.
        wanted: what the list must be equal to.
        said: the text of each assert, empty where it has none.
    """

    code: str
    wanted: list[Any]
    said: list[str]

    def failure(self, told: Any) -> str | None:
        """What Python would say of the first assert that does not hold; None: all hold.

        Args:
            told: what was printed behind the mark.
        """
        try:
            given = ast.literal_eval(told)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            given = []
        for place, (wanted, said) in enumerate(zip(self.wanted, self.said, strict=True)):
            if not isinstance(given, list) or len(given) <= place or given[place] != wanted:
                return f"AssertionError: {said}".removesuffix(": ")
        return None


def split_asserts(check: str, mark: str) -> SplitCheck | None:
    """Take a check apart; None if one of its asserts is not of the form `assert VALUE == LITERAL`.

    Args:
        check: Python code.
        mark: a word that the program does not know beforehand.
    """
    tree = parse_check(check)
    wanted, said, body = [], [], list[ast.stmt]()
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
        said.append(str(node.msg.value) if isinstance(node.msg, ast.Constant) else "")
        body.append(ast.parse(f"_values_{mark}.append({ast.unparse(pair[0])})").body[0])
    if not wanted:
        return None
    told = f"_values_{mark} = []\n{ast.unparse(ast.Module(body, []))}\n{_TELL.format(mark=mark)}"
    return SplitCheck(told, wanted, said)


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
        try:
            return given, ast.literal_eval(wanted)
        except (ValueError, TypeError):
            continue
    return None
