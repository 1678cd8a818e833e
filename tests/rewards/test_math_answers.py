"""Equality of mathematical answers is one of values; the cases are in `test_math_numbers.py` and beside it."""

from __future__ import annotations

from fractions import Fraction

import pytest
from cpu_time import takes_less
from hypothesis import example, given, settings
from hypothesis import strategies as st
from math_pairs import same

from agentrl.rewards.scores.math_compare import same_answer, undecided


def numbers() -> st.SearchStrategy[Fraction]:
    return st.one_of(
        st.integers(-(10**7), 10**7).map(Fraction),
        st.fractions(-50, 50, max_denominator=60),
        st.decimals(-1000, 1000, places=3).map(Fraction),
    )


def writings(value: Fraction) -> list[str]:
    """All the ways in which the table allows to write a number."""
    top, bottom = value.numerator, value.denominator
    sign, size = ("-" if top < 0 else ""), abs(value)
    found = [f"\\frac{{{top}}}{{{bottom}}}", f"{top}/{bottom}", f"\\dfrac{{{top}}}{{{bottom}}}"]
    if bottom == 1:
        whole = abs(top)
        found += [
            f"{top}",
            f"{sign}{whole:,}",
            f"{sign}{whole:,}.0".replace(",", "{,}"),
            f"{sign}{whole:,}".replace(",", "\\,"),
            f"{sign}{whole:,}".replace(",", ",\\!"),
            f"${top}$.",
            f"x = {top}",
            f"{top} \\text{{ cm}}",
            f"\\left( {top} \\right)",
            f"{sign}00{whole}",
        ]
    elif size > 1:
        found += [f"{sign}{size // 1}\\frac{{{(size % 1).numerator}}}{{{bottom}}}", f"{sign}{size // 1} {size % 1}"]
    if 1000 % bottom == 0:
        found += [f"{float(value):.3f}", f"{float(value):.4f}"]
    return found


@given(numbers(), st.data())
@settings(max_examples=150)
def test_a_number_equals_itself_in_all_of_its_writings(value: Fraction, data: st.DataObject) -> None:
    one, other = (data.draw(st.sampled_from(writings(value))) for _ in range(2))
    assert same_answer(one, other, undecided) is True


@given(numbers(), numbers(), st.data())
@settings(max_examples=150)
def test_different_numbers_are_never_equal(value: Fraction, other: Fraction, data: st.DataObject) -> None:
    a, b = data.draw(st.sampled_from(writings(value))), data.draw(st.sampled_from(writings(other)))
    assert same_answer(a, b, undecided) is (value == other)


KINDS = {
    "list": (", ".join, lambda v: tuple(sorted(v))),
    "set": (lambda v: "\\{" + ", ".join(v) + "\\}", frozenset),
    "tuple": (lambda v: "(" + ", ".join(v) + ")", tuple),
    "half": (lambda v: "[" + ", ".join(v[:2]) + ")", lambda v: tuple(v[:2])),
    "interval": (lambda v: "\\left[" + ", ".join(v[:2]) + "\\right]", lambda v: tuple(v[:2])),
    "vector": (lambda v: "\\begin{pmatrix}" + "\\\\".join(v) + "\\end{pmatrix}", tuple),
}
several = st.lists(st.integers(-3, 3).map(lambda n: Fraction(n, 2)), min_size=2, max_size=3)


@given(several, several, st.sampled_from(sorted(KINDS)), st.data())
@settings(max_examples=200)
def test_structures_are_equal_when_their_values_are(
    a: list[Fraction], b: list[Fraction], kind: str, data: st.DataObject
) -> None:
    write, value = KINDS[kind]

    def written(numbers: list[Fraction]) -> str:
        return str(write([data.draw(st.sampled_from(writings(number)[:2])) for number in numbers]))

    assert same_answer(written(a), written(b), undecided) is (value(a) == value(b))


@given(several, several, st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(KINDS)))
@settings(max_examples=100)
def test_kinds_that_differ_are_equal_only_by_the_table(
    a: list[Fraction], b: list[Fraction], one: str, two: str
) -> None:
    """A list may stand for a set, in order for a tuple; nothing else stands for another kind."""
    if one == two or "list" in (one, two):
        return
    assert same_answer(KINDS[one][0](list(map(str, a))), KINDS[two][0](list(map(str, b))), undecided) is False


@given(st.integers(1, 400), st.integers(1, 400), st.integers(2, 12))
@settings(max_examples=40)
@example(a=371, b=372, base=12)
def test_tiny_and_huge_numbers_differ(a: int, b: int, base: int) -> None:
    for form in ("\\frac{{1}}{{{0}^{{{1}}}}}", "{0}^{{{1}}}", "\\sqrt{{2}}\\cdot {0}^{{-{1}}}", "e^{{-{1}}}\\pi"):
        assert same(form.format(base, a), form.format(base, b)) == (a == b)


@given(st.integers(2, 30), st.integers(2, 30), st.integers(1, 9))
@settings(max_examples=40)
def test_roots_equal_themselves_written_otherwise(root: int, factor: int, more: int) -> None:
    whole = f"{more}+{factor}\\sqrt{{{root}}}"
    assert same(f"\\sqrt{{{root * factor**2}}}+{more}", whole)
    assert not same(f"\\sqrt{{{root * factor**2 + 1}}}+{more}", whole)
    assert not same(f"\\sqrt{{{root * factor**2}}}-{more}", whole)


@given(st.text(alphabet="12,. ()[]{}\\frac$%^_=<>+-x\u2212&|;:", max_size=40))
@settings(max_examples=200)
def test_any_text_is_read(text: str) -> None:
    assert same_answer(text, text, undecided) in (True, False, None)
    assert same_answer(text, "17", undecided) in (True, False, None)


@pytest.mark.parametrize(
    "piece",
    [
        "1,",
        "1 ",
        "(",
        "{",
        "[1,",
        "x=",
        "x<",
        r"\pm ",
        r"\pmod 3",
        r"\text{",
        r"5\text{a}",
        r"\frac{",
        " a",
        "-",
        r"\cup",
    ],
)
def test_reading_takes_no_time(piece: str) -> None:
    """Before any process with limits is asked, in the worker that also serves other trajectories."""
    text = piece * (3900 // len(piece))
    assert takes_less(lambda: same_answer("1" + text, "x+y", undecided), 0.5)
    numbers = ", ".join(map(str, range(900)))
    assert takes_less(lambda: same_answer(numbers, numbers + "0", undecided), 0.5)
