"""The calculator: exact, and quick to refuse."""

from __future__ import annotations

import asyncio
import contextlib
from fractions import Fraction

import pytest
from cpu_time import takes_less
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.tools.calculator import Calculator, evaluate, format_number
from agentrl.types import ToolResponse


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("6 * 7", "42"),
        ("(1 + 2) * -3", "-9"),
        ("0.1 + 0.2", "0.3"),
        ("1/3", "0.333333333333333"),
        ("7 // 2 + 7 % 4", "6"),
        ("2 ** 10", "1024"),
        ("2^-1", "0.5"),
        ("2^3^2", "512"),
        ("-" * 400 + "1", "1"),
        ("1,234.5 - 1,000", "234.5"),
        ("10 % 4 + 50%", "2.5"),
        ("1,234,567 + 1", "1234568"),
        ("$5.50 x 2 =", "11"),
        ("15% * 200", "30"),
        ("50% - 2", "-1.5"),
        ("(10 + 5)%", "0.15"),
        ("3 × 4 ÷ 2", "6"),
        ("007 + 1", "8"),
        ("100.0", "100"),
        ("1e3 + .5", "1000.5"),
        ("2 ** 0.5", "1.4142135623731"),
        ("123456789012.5 * 2", "246913578025"),
    ],
)
def test_values(expression: str, value: str) -> None:
    assert format_number(evaluate(expression)) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1/0", "division by zero"),
        ("5 % 0", "division by zero"),
        ("9**9**9", "too large"),
        ("0 ** -1", "division by zero"),
        ("9**9**0.5**9**9**9", "too large"),
        ("(-8) ** 0.5", "no real power"),
        ("__import__('os')", "cannot read"),
        ("x + 1", "cannot read"),
        ("1 +", "cannot read"),
        ("", "cannot read"),
        ("2(3)", "with an operator between any two numbers"),
        ("1 2", "cannot read"),
        ("1 if 1 else 2", "cannot read"),
        ("1" * 501, "501 characters"),
        ("1e9999", "not a number that the calculator reads"),
        ("(" * 250 + ")" * 250, "cannot read"),
        ("1E400*" * 60 + "1", "too large"),
        ("1,2", "cannot read"),
        ("...", "not a number that the calculator reads"),
        ("2**10**6", "too large"),
        ("10**10**10**10", "too large"),
        ("(9**9)**(9**9)", "too large"),
        ("9**999 * 9**999 * 9**999", "too large"),
        ("1e999 ** 9", "too large"),
        ("2 ** -99999999", "too large"),
        ("0.1 ** 99999", "too large"),
        ("170!", "cannot read"),
        ("9" * 100_000, "100000 characters"),
        ("(" * 100_000, "100000 characters"),
        ("-" * 499 + "x", "cannot read"),
        ("٣ + ٤", "cannot read"),
        ("² + 1", "cannot read"),
        ("1_000 + 1", "cannot read"),
        ("1j * 1", "cannot read"),
        ("1 << 9", "cannot read"),
        ("[1] * 9", "cannot read"),
        ("1\x00", "cannot read"),
        ("%", "cannot read"),
        ("1,000,00", "cannot read"),
    ],
)
def test_mistakes_are_answered_at_once(expression: str, message: str) -> None:
    def answer() -> ToolResponse:
        return asyncio.run(Calculator({}).execute({"expression": expression}))

    assert takes_less(answer, 0.05)
    response = answer()
    assert response.is_error
    assert message in response.text


def test_a_configuration_that_cannot_work() -> None:
    with pytest.raises(ValueError, match=r"unknown key 'config\.timeout'\. Did you mean 'timeout_s'"):
        Calculator({"timeout": 1})


@given(st.text(alphabet="0123456789.+-*/%()e, ^x", max_size=40))
@settings(deadline=None, max_examples=300)
def test_any_text_gives_a_value_or_a_message(text: str) -> None:
    def answer() -> None:
        with contextlib.suppress(ValueError, ArithmeticError):
            format_number(evaluate(text))

    assert takes_less(answer, 0.05)


NUMBERS = st.decimals(min_value=0, max_value=10_000, places=2).map(str)


@given(NUMBERS, NUMBERS, NUMBERS, st.sampled_from("+-*"), st.sampled_from("+-*"))
def test_values_are_exact(a: str, b: str, c: str, first: str, second: str) -> None:
    apply = {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__}
    wanted = apply[second](apply[first](Fraction(a), Fraction(b)), Fraction(c))
    assert evaluate(f"({a} {first} {b}) {second} {c}") == wanted
