"""Numbers as mathematical answers: marks, decimals, fractions, mixed numbers, bases."""

from __future__ import annotations

import pytest
from math_pairs import both_ways, same

EQUAL = [
    (r"1,\!234", "1234"),
    (r"1\,234", "1234"),
    ("1.234,5", "1234.5"),
    ("1.234.567", "1234567"),
    (r"1\frac12", "1.5"),
    (r"-1\frac{1}{2}", "-1.5"),
    (r"1\ 1/2", "1.5"),
    (r"1.2\times10^3", "1200"),
    (r"1.2\cdot 10^{-3}", "0.0012"),
    (".5", "0.5"),
    ("0.50", "0.5"),
    ("5.", "5"),
    ("5.0", "5"),
    ("+5", "5"),
    ("−5", "-5"),
    (r"\dfrac{1}{2}", r"\tfrac12"),
    (r"\frac{2}{4}", r"\frac{1}{2}"),
    (r"\frac{-1}{2}", r"-\frac12"),
    ("2516_8", "2516_{8}"),
    ("1:2", "1:2"),
    ("2:4", "1:2"),
    ("1,000", "1000"),
    (r"\frac{1,000}{3}", r"\frac{1000}{3}"),
    (r"2\,000", "2000"),
    ("10{,}000", "10,000"),
    ("((((5))))", "5"),
    ("{5}", "5"),
    ("1,234.50", "1234.5"),
    ("-1,234", "-1234"),
    (r"2\frac{1}{3}", r"\frac73"),
    (r"3\times10^8", "300000000"),
    ("10^8", "100000000"),
    ("1010_2", "12_8"),
    (r"0.1\overline{6}", "1/6"),
    ("-0", "0"),
    ("1{,}2", "1.2"),
]
DIFFERENT = [
    ("5 6", "11"),
    ("5 6", "30"),
    ("0.666666", r"\frac23"),
    ("0.0000001", "0.0000002"),
    ("1 2", "12"),
    (r"1\frac{1}{2}", "0.5"),
    ("-5", "5"),
    ("", "5"),
    ("1/0", "5"),
    (r"\frac{1}{0}", r"\frac{2}{0}"),
    ("5 5", "5"),
    (r"2 \frac{1}{3}", r"\frac23"),
    (r"0.\overline{3}", "0.3"),
    ("5/0", "5"),
    ("12", "1{,}2"),
    ("1/2", "12"),
]


@pytest.mark.parametrize(("answer", "gold", "wanted"), both_ways(EQUAL, DIFFERENT))
def test_answers(answer: str, gold: str, wanted: bool) -> None:
    assert same(answer, gold) == wanted
