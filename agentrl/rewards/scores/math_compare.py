r"""Whether two answers are the same value, by their structure.

Expressions that are no plain numbers are asked for, and None means that they were not decided. In the caller's process
nothing can be asked, so None there means: ask a process that has computer algebra.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

from agentrl.rewards.scores.math_layout import clean
from agentrl.rewards.scores.math_structure import Expression, Items, Named, Value, read
from agentrl.rewards.scores.math_text import (
    plain_words,
    split,
    split_base,
    split_choice,
    squeeze,
    to_exact,
    words_of,
)
from agentrl.rewards.scores.math_units import split_letter_unit, split_unit, units_differ

Ask = Callable[[str, str], bool | None]
"""Whether two expressions are equal; None: not decided."""
MOST_CHARACTERS = 4000
"""Longer answers are right only if their text is."""
MOST_UNORDERED = 100
"""Longer lists and sets must have the same order: pairing takes the square of their length."""
_UNORDERED = ("list", "set", "union")
_SEQUENCES = ("()", "vector")
_REMAINDER = re.compile(r"(?:.*\\equiv(?![A-Za-z]))?(.*?)\\pmod\s*\{([^{}]*)\}\s*", re.DOTALL)
_CLOCK = re.compile(r"\d{1,2}:[0-5]\d")


def same_answer(answer: str, gold: str, ask: Ask) -> bool | None:
    """Whether an answer has the value of the gold one.

    Args:
        answer: what was in the box.
        gold: the right answer.
        ask: decides two expressions.
    """
    if not gold.strip():
        return False
    if max(len(answer), len(gold)) > MOST_CHARACTERS:
        return answer.strip() == gold.strip()
    given, wanted = clean(answer), clean(gold)
    if squeeze(given) == squeeze(wanted):
        return bool(squeeze(wanted))
    (letter, given), (right_letter, wanted) = split_choice(given), split_choice(wanted)
    if letter and right_letter:
        return letter == right_letter
    if letter or right_letter:
        # `(B) 12` is B, and 12; `(B)` is B only, which may stand in `\text{}`
        other = wanted if letter else given
        if (words_of(other) or other).upper() == (letter or right_letter):
            return True
        if not given or not wanted:
            return False
    return _any(_same(mine, theirs, ask) for mine in read(given) for theirs in read(wanted))


def _same(a: Value, b: Value, ask: Ask) -> bool | None:
    if isinstance(a, Named) or isinstance(b, Named):
        return _same_named(a, b, ask)
    if isinstance(a, Expression) and isinstance(b, Expression):
        return _same_expression(a, b, ask)
    if isinstance(a, Items) and isinstance(b, Items):
        return _same_items(a, b, ask)
    items, other = (a, b) if isinstance(a, Items) else (b, a)
    assert isinstance(items, Items)
    assert isinstance(other, Expression)
    if items.kind in ("set", "list") and len(items.values) == 1:
        return _same(items.values[0], other, ask)
    # `x^2 < 4` against `(-2, 2)`, and `2x > 4` against `x > 2`
    return ask(a.text, b.text) if re.search(r"[<>]|\\[lg]e(?![A-Za-z])", other.text) else False


def _same_named(a: Value, b: Value, ask: Ask) -> bool | None:
    """`x = 5` is 5, and is not `y = 5`; `y = x + 1` may be `x = y - 1`."""
    if isinstance(a, Named) and isinstance(b, Named):
        if a.name == b.name:
            return _same(a.value, b.value, ask)
        letters = all(isinstance(v.value, Expression) and re.search(r"[A-Za-z]", v.value.text) for v in (a, b))
        return ask(a.text, b.text) if letters and "=" in a.text and "=" in b.text else False
    named, other = (a, b) if isinstance(a, Named) else (b, a)
    assert isinstance(named, Named)
    is_relation = isinstance(other, Expression) and re.search(r"=|[<>]|\\[lg]e(?![A-Za-z])", other.text)
    return ask(a.text, b.text) if is_relation else _same(named.value, other, ask)


def _same_items(a: Items, b: Items, ask: Ask) -> bool | None:
    kinds = {a.kind, b.kind}
    if kinds <= set(_UNORDERED):
        return _contained(a, b, ask) if "set" in kinds else _matched(a.values, b.values, ask)
    if "list" in kinds and kinds <= {"list", *_SEQUENCES}:
        # A list without brackets takes the order of the tuple that it is compared with.
        return _in_order(a.values, b.values, ask) if "()" in kinds else _matched(a.values, b.values, ask)
    for one, other in ((a, b), (b, a)):
        if one.kind in ("list", "set") and len(one.values) == 1:
            return _same(one.values[0], other, ask)
    if a.kind == b.kind or kinds == set(_SEQUENCES):
        return _in_order(a.values, b.values, ask)
    return False


def _contained(a: Items, b: Items, ask: Ask) -> bool | None:
    """Whether each of two sets holds every value of the other, however often."""
    if len(a.values) * len(b.values) > MOST_UNORDERED**2:
        return _in_order(a.values, b.values, ask)
    return _all(
        _any(_same(value, other, ask) for other in others.values)
        for values, others in ((a, b), (b, a))
        for value in values.values
    )


def _in_order(a: Sequence[Value], b: Sequence[Value], ask: Ask) -> bool | None:
    if len(a) != len(b):
        return False
    return _all(_same(mine, theirs, ask) for mine, theirs in zip(a, b, strict=True))


def _matched(a: Sequence[Value], b: Sequence[Value], ask: Ask) -> bool | None:
    """Whether the values can be paired. Equality is transitive, so the first partner of each is as good as any."""
    if len(a) != len(b):
        return False
    if len(a) > MOST_UNORDERED:
        return _in_order(a, b, ask)
    rest, open_ends = list(b), False
    for value in a:
        verdicts = [_same(value, other, ask) for other in rest]
        if True in verdicts:
            rest.pop(verdicts.index(True))
        elif None in verdicts:
            open_ends = True
        else:
            return False
    return None if open_ends else True


def _same_expression(a: Expression, b: Expression, ask: Ask) -> bool | None:
    if "\\pmod" in a.text + b.text:
        return _same_remainder(a, b, ask)
    sides = [split(value.text, "=") for value in (a, b)]
    if min(map(len, sides)) == 1 < max(map(len, sides)):
        equation, other = (a, b) if len(sides[0]) > 1 else (b, a)
        value = _last_side(equation)
        return False if value is None else _same_expression(value, other, ask)
    if "%" in (a.unit, b.unit):
        return _same_percent(a, b, ask)
    if {a.unit, b.unit} == {"cent", "dollar"}:
        cents, dollars = (a, b) if a.unit == "cent" else (b, a)
        return _same_text(_hundredth(cents.text), dollars.text, ask)
    if units_differ(a.unit, b.unit):
        return False
    for text, other in ((a, b), (b, a)):
        if text.unit is None and (body := split_letter_unit(text.text, other.unit)) is not None:
            return _same_text(body, other.text, ask)
    return _same_text(a.text, b.text, ask)


def _same_remainder(a: Expression, b: Expression, ask: Ask) -> bool | None:
    r"""`5 \pmod{7}` is 5, and is not `5 \pmod{8}`: a modulus may be left off, and `x \equiv` too."""
    found = [_REMAINDER.fullmatch(value.text) for value in (a, b)]
    texts = [(match[1], match[2]) if match else (value.text, None) for match, value in zip(found, (a, b), strict=True)]
    (body, modulus), (other, other_modulus) = texts
    if "\\pmod" in body + other:
        return ask(a.text, b.text)
    moduli = _same_text(modulus, other_modulus, ask) if modulus and other_modulus else True
    return _all((moduli, _same_text(body.strip(), other.strip(), ask)))


def _last_side(equation: Expression) -> Expression | None:
    """What `2 + 3 = 5` and `a + b = 5` say; None for an equation to be solved: `x + 1 = 5` is not 5."""
    *left, right = split(equation.text, "=")
    letters = set(re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", left[0])))
    solvable = len(letters) == 1 and re.search(r"\d", left[0])
    return None if solvable else Expression(*split_unit(right.strip()))


def _same_percent(a: Expression, b: Expression, ask: Ask) -> bool | None:
    """`50%` is 50 (the sign left off) and one half; `50%` and `0.5%` differ."""
    if a.unit == b.unit:
        return _same_text(a.text, b.text, ask)
    share, other = (a, b) if a.unit == "%" else (b, a)
    if other.unit:
        return False
    return _any(_same_text(text, other.text, ask) for text in (share.text, _hundredth(share.text)))


def _hundredth(text: str) -> str:
    number = to_exact(text)
    if number is None:
        return rf"\frac{{{text}}}{{100}}"
    value = number.value / 100
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _same_text(a: str, b: str, ask: Ask) -> bool | None:
    if squeeze(a) == squeeze(b):
        return True
    x, y = to_exact(a), to_exact(b)
    if x is not None and y is not None:
        # Two decimals are compared as they are: 0.333333 is not 0.3333333.
        rounded = (x.decimals == 0 or y.decimals == 0) and (x.rounds(y.value) or y.rounds(x.value))
        return x.value == y.value or rounded
    if _CLOCK.fullmatch(a) and _CLOCK.fullmatch(b):
        return False  # 3:30 is not 1:10, though the ratios are equal
    (digits, base), (other_digits, other_base) = split_base(a), split_base(b)
    if base or other_base:
        if base and other_base:
            return int(digits, base) == int(other_digits, other_base)
        return digits == other_digits
    words = words_of(a), words_of(b)
    if any(words):
        return (words[0] or plain_words(a)) == (words[1] or plain_words(b))
    if plain_words(a) == plain_words(b):
        return True
    return ask(a, b) if a.count("'") == b.count("'") else False  # the library reads `x'` as x


def _any(verdicts: Iterable[bool | None]) -> bool | None:
    undecided = False
    for verdict in verdicts:
        if verdict:
            return True
        undecided |= verdict is None
    return None if undecided else False


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    undecided = False
    for verdict in verdicts:
        if verdict is False:
            return False
        undecided |= verdict is None
    return None if undecided else True


def undecided(a: str, b: str) -> None:
    """The answer of a process that has no computer algebra."""


def rounds_to(text: str, value: Fraction) -> bool:
    """Whether a text is a decimal, and `value` rounded to it."""
    number = to_exact(text)
    return number is not None and number.rounds(value)
