"""Asserts without what they expect: the same programs pass as where Python runs the assert itself."""

from __future__ import annotations

import io
import json
import sys

import pytest

from agentrl.clients.split_asserts import split_asserts

MARK = "ended_0123"


def said(monkeypatch: pytest.MonkeyPatch, program: str, check: str) -> str | None:
    """What a split check says of a program; None: it passes."""
    split = split_asserts(check, MARK)
    assert split is not None
    told = io.StringIO()
    monkeypatch.setattr(sys, "__stdout__", told)
    exec(compile(f"{program}\n{split.code}", "main.py", "exec"), {"__name__": "__main__"})
    return split.failure(json.loads(told.getvalue().strip().removeprefix(MARK)))


SAME = [
    ("l = [1]\ndef f(x): l.append(x); return l", "assert f(1) == [1, 1]\nassert f(2) == [1, 1, 2]", True),
    (
        "d = {}\ndef f(x): d[x] = [x]; return (d,)",
        "assert f(1) == ({1: [1]},)\nassert f(2) == ({1: [1], 2: [2]},)",
        True,
    ),
    ("def f(x): return 1", "assert f(1) is True", False),
    ("def f(x): return x == 1", "assert f(1) is True\nassert f(2) is False", True),
    ("def f(x): return 0", "assert f(1) is None", False),
    ("def f(x): return None", "assert f(1) is None", True),
    ("import numpy\ndef f(x): return numpy.bool_(True)", "assert f(1) is True", False),
    ("import numpy\ndef f(x): return numpy.bool_(True)", "assert f(1) == True", True),
    ("def f(x): return 1", "assert f(1) == True", True),
    ("class A:\n    def __repr__(self): return '2'\ndef f(x): return A()", "assert f(1) == 2", False),
    ("class A:\n    def __repr__(self): return '2'\ndef f(x): return [A()]", "assert f(1) == [2]", False),
    ("class A(int):\n    def __repr__(self): return '3'\ndef f(x): return A(2)", "assert f(1) == 2", True),
    ("from fractions import Fraction\ndef f(x): return Fraction(1, x)", "assert f(2) == 0.5\nassert f(1) == 1", True),
    ("from fractions import Fraction\ndef f(x): return Fraction(1, x)", "assert f(3) == 0.3333333333333333", False),
    ("from decimal import Decimal\ndef f(x): return {x: Decimal(x)}", "assert f(2) == {2: 2}", True),
    ("from decimal import Decimal\ndef f(x): return Decimal(x)", "assert f('0.1') == 0.1", False),
    ("from decimal import Decimal\ndef f(x): return Decimal(x)", f"assert f({10**40 + 1}) == {10**40 + 1}", True),
    ("def f(x): return bytearray(b'a')", "assert f(1) == b'a'", True),
    ("def f(x): return {1: 2}.keys()", "assert f(1) == {1}", True),
    ("def f(x): return {1: 2}.items()", "assert f(1) == {(1, 2)}", True),
    ("def f(x): return {1: 2}.values()", "assert f(1) == [2]", False),
    ("def f(x): return range(2)", "assert f(1) == [0, 1]", False),
    ("def f(x): return (1, (), [], {}, set(), frozenset({2}))", "assert f(1) == (1, (), [], {}, set(), {2})", True),
    ("def f(x): return [1]", "assert f(1) == (1,)", False),
    ("from collections import Counter\ndef f(x): return Counter(x)", "assert f('aab') == {'a': 2, 'b': 1}", True),
    (
        "def f(x): return [x, -x, 1j, 'inf', None, ...]",
        "assert f(1e999) == [1e999, -1e999, 1j, 'inf', None, ...]",
        True,
    ),
    ("def f(x): return -(10 ** x)", f"assert f(6000) == -0x{10**6000:x}", True),
    ("list = dict = str = int = type = isinstance = map = repr = 0\ndef f(x): return [x]", "assert f(1) == [1]", True),
]


@pytest.mark.parametrize(("program", "check", "passes"), SAME)
def test_a_split_assert_says_what_python_says(
    monkeypatch: pytest.MonkeyPatch, program: str, check: str, passes: bool
) -> None:
    where: dict[str, object] = {}
    try:
        exec(compile(f"{program}\n{check}", "main.py", "exec", dont_inherit=True), where)
        python = True
    except AssertionError:
        python = False
    assert python is passes
    assert said(monkeypatch, program, check) == (None if passes else "AssertionError")


def test_what_is_expected_stays_outside() -> None:
    split = split_asserts("assert f(1) == 4711\nassert f(2) is None, 'no'", MARK)
    assert split is not None
    assert "4711" not in split.code
    assert split.failure("4711") == "AssertionError"
    assert split.failure(["4711"]) == split.failure(["4711", 1]) == split.failure(["4711", "0"]) == "AssertionError: no"
    assert split.failure(["4711", "None"]) is None


@pytest.mark.parametrize(
    "check", ["assert f(1) is []", "assert f(1) is not None", "assert f(1)", "if x:\n    assert f(1) == 1"]
)
def test_other_asserts_stay_whole(check: str) -> None:
    assert split_asserts(check, MARK) is None
