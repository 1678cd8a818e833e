r"""Reads the structure of an answer: lists, sets, tuples, intervals, unions, matrices and equations of expressions.

`x = \pm 2` becomes `Named("x", Items("list", (Expression("+2"), Expression("-2"))))`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from agentrl.rewards.scores.math_layout import clean, unwrap
from agentrl.rewards.scores.math_matrix import matrix_cells
from agentrl.rewards.scores.math_text import matches, number_readings, split, to_exact
from agentrl.rewards.scores.math_units import split_unit

Kind = Literal["list", "set", "()", "(]", "[)", "[]", "vector", "union", "matrix"]
_MOST_DEPTH = 12


@dataclass(frozen=True, slots=True)
class Expression:
    """Text that is one expression, and its unit: `%`, a known unit, empty for other words, None without one."""

    text: str
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Items:
    """Several values. Lists, sets and unions have no order; the other kinds do."""

    kind: Kind
    values: tuple[Value, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Named:
    r"""`name = value`, `name \in value`, or an inequality of `name` as an interval."""

    name: str
    value: Value
    text: str


Value = Expression | Items | Named

_AND_OR = re.compile(
    r",?\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
    r"|\\(?:lor|vee|land|wedge)(?![A-Za-z]))\s*"
)
_LOGIC = re.compile(r"\\(lor|vee|land|wedge)(?![A-Za-z])")
_AND = re.compile(r"\\text\s*\{\s*and\s*\}|(?<![A-Za-z\\])and(?![A-Za-z])|\\(?:land|wedge)(?![A-Za-z])")
_NAME = r"(?:[A-Za-z]|\\[A-Za-z]+)(?:_\{?\w+\}?|')?(?:\([\w, ]+\))?"
_LETTERS = r"\\(?:vec|hat|overline|text)\{[A-Za-z]+\}"
_UNKNOWNS = r"\\begin\{[pb]matrix\}[A-Za-z_{}\d\\&\s]*\\end\{[pb]matrix\}"
_IS_NAME = re.compile(rf"{_NAME}|{_LETTERS}|{_UNKNOWNS}|\((?:\s*{_NAME}\s*,)+\s*{_NAME}\s*\)|[A-Za-z]{{2,3}}")
_IN = re.compile(rf"({_NAME})\s*\\in(?![A-Za-z])\s*(.+)")
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![A-Za-z])")
_ORDER = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_COUNTED = re.compile(r"([-+]?(?:\d[\d.,/:]*|\.\d+))(?:\s*((?<=\s)[A-Za-z][A-Za-z .]*|st|nd|rd|th|[a-z]{2,3}|%))?")
"""What may stand in `\\text{}` as a whole: `3`, `3 apples`, `7th`, `5cm`, `5%`."""
_REALS = re.compile(r"\\mathbb\{R\}|\\R|\\Re|ℝ|(?i:(?:\\text\{)?\s*all real(?: number)?s\s*\}?)")
_ALL = r"(?:\\mathbb\s*\{R\}|\\R|ℝ|\(-\\infty\s*,\s*\\infty\s*\))"
_EXCEPT = re.compile(
    rf"{_ALL}\s*(?:\\setminus|\\backslash|-)\s*\\\{{(?P<those>.*)\\\}}"
    rf"|(?P<name>{_NAME})\s*\\ne(?![A-Za-z])\s*(?P<that>.+)"
)
r"""The reals without some numbers: `\mathbb{R} \setminus \{0, 1\}`, `x \ne 0`."""
_SUCH_THAT = re.compile(rf"^\s*{_NAME}\s*(?:\\in\s*(?:\\mathbb\s*\{{?R\}}?|ℝ)\s*)?(?:\\mid(?![A-Za-z])|\||:)\s*")
_NO_NAMES = {"\\pi", "\\infty", "\\emptyset", "e", "i"}


def read(answer: str) -> list[Value]:
    """The readings of an answer: one, or two where a comma may be a thousands mark."""
    texts = [clean(answer)]
    left, approximately, right = texts[0].partition("\\approx")
    if approximately:  # `x \approx 3.14` is 3.14; `\sqrt{2} \approx 1.41` is either
        texts = [f"{left}={right}"] if _is_name(left.strip()) else [part for part in (left, right) if part.strip()]
    return [_read(read_as, 0) for text in texts for read_as in number_readings(text)]


def _read(text: str, depth: int) -> Value:
    text = unwrap(text.strip(" ;"))
    if depth > _MOST_DEPTH:
        return Expression(text)
    if (whole := _TEXT.fullmatch(text)) and re.search(r",|;|\b(?:and|or)\b", whole[1]):
        text = whole[1]
    elif whole and (counted := _COUNTED.fullmatch(whole[1].strip())):
        unit = counted[2] or ""
        text = counted[1] + (rf" \text{{{unit}}}" if unit.strip("%") else unit)
    if _REALS.fullmatch(text):
        text = r"(-\infty, \infty)"
    if both := _between(text, depth):
        return both
    signs = {"and" if found[1] in ("land", "wedge") else "or" for found in _LOGIC.finditer(text)}
    if signs and not any(mark in text for mark in ("=", "<", ">", "\\le", "\\ge", "\\ne", "\\in")):
        # of statements: `p \land q` is `q \land p`, but neither `p \lor q` nor `p, q`
        statements = [_read(part, depth + 1) for part in _LOGIC.split(text)[::2]]
        return Items("list", (*statements, *(Expression(rf"\text{{{sign}}}") for sign in sorted(signs))), text)
    parts = [part for part in split(_AND_OR.sub(", ", text), ",;") if part.strip()]
    if len(parts) > 1:
        return _list([_read(part, depth + 1) for part in parts], text)
    return _one(text, depth)


def _list(values: list[Value], text: str) -> Value:
    r"""A list, with the lists in it laid out: `\pm 1, 3` holds three values."""
    flat: list[Value] = []
    for value in values:
        flat += value.values if isinstance(value, Items) and value.kind == "list" else [value]
    # In `x = 1, 2` the name is that of both.
    first = flat[0]
    if isinstance(first, Named) and not any(isinstance(value, Named) for value in flat[1:]) and "=" in first.text:
        return Named(first.name, Items("list", (first.value, *flat[1:]), text), text)
    return Items("list", tuple(flat), text)


def _one(text: str, depth: int) -> Value:
    if rows := matrix_cells(text):
        values = tuple(Items("vector", tuple(_read(cell, depth + 1) for cell in row), text) for row in rows)
        return Items("matrix", values, text)
    if (holes := _EXCEPT.fullmatch(text)) and (union := _without(holes["those"] or holes["that"])):
        value = _read(union, depth + 1)
        return Named(holes["name"].lower(), value, text) if holes["name"] else value
    if found := _IN.fullmatch(text):
        return Named(found[1], _read(found[2], depth + 1), text)
    relation = _equation(text, depth) or _inequality(text, depth)
    if relation is not None:
        return relation
    if "\\cup" in text and len(parts := split(text, "\\cup")) > 1:
        return Items("union", tuple(_read(part, depth + 1) for part in parts), text)
    if _PLUS_MINUS.search(text) and not text.startswith("\\{"):
        upper = _PLUS_MINUS.sub(lambda found: "+" if found[1] == "pm" else "-", text)
        lower = _PLUS_MINUS.sub(lambda found: "-" if found[1] == "pm" else "+", text)
        return Items("list", (_read(upper, depth + 1), _read(lower, depth + 1)), text)
    return _bracketed(text, depth) or Expression(*split_unit(text))


def _without(numbers: str) -> str | None:
    r"""The reals without some numbers, as intervals: `0` -> `(-\infty,0)\cup(0,\infty)`."""
    holes = [part.strip() for part in split(numbers, ",")]
    values = {part: number.value for part in holes if (number := to_exact(part)) is not None}
    if len(values) < len(holes):
        return None
    ends = [r"-\infty", *sorted(values, key=values.__getitem__), r"\infty"]
    return r"\cup".join(f"({low},{high})" for low, high in pairwise(ends))


def _equation(text: str, depth: int) -> Value | None:
    r"""`x = 5`, `5 = x` and `x = 2 + 3 = 5` as a named value; other equations stay expressions."""
    sides = [side.strip() for side in split(text, "=")]
    if len(sides) < 2 or not all(sides) or _ORDER.search(text):
        return None
    name, value = sides[0], sides[-1]
    if not _is_name(name) and len(sides) == 2 and _is_name(value):
        name, value = value, name
    if _is_name(name):
        return Named(re.sub(r"[\s{}]", "", name).lower(), _read(value, depth + 1), text)
    return None


def _is_name(text: str) -> bool:
    return _IS_NAME.fullmatch(text) is not None and text not in _NO_NAMES


def _inequality(text: str, depth: int) -> Value | None:
    r"""`1 < x \le 2` and `x > 2` as intervals of `x`: `(1, 2]` and `(2, \infty)`."""
    signs = [found[0] for found in _ORDER.finditer(text)]
    sides = [side.strip() for side in _ORDER.split(text)]
    if len(signs) not in (1, 2) or not all(sides) or "=" in text:
        return None
    if signs[0] in (">", "\\ge"):  # read from the small side to the large one
        sides.reverse()
        signs = [{">": "<", "\\ge": "\\le"}.get(sign, "?") for sign in reversed(signs)]
    if not set(signs) <= {"<", "\\le"}:
        return None
    if len(sides) == 2:
        sides, signs = (
            (["-\\infty", *sides], ["<", *signs]) if _is_name(sides[0]) else ([*sides, "\\infty"], [*signs, "<"])
        )
    low, name, high = sides
    if not _is_name(name):
        return None
    kind = _BY_ENDS["(" if signs[0] == "<" else "[", ")" if signs[1] == "<" else "]"]
    ends = (_read(low, depth + 1), _read(high, depth + 1))
    return Named(name.lower(), Items(kind, ends, text), text)


def _between(text: str, depth: int) -> Named | None:
    r"""`x > 1 \text{ and } x < 2` as `1 < x < 2`."""
    parts = [part.strip() for part in _AND.split(text)]
    if len(parts) != 2:
        return None
    sides = [_inequality(part, depth) for part in parts]
    named = [side for side in sides if isinstance(side, Named) and isinstance(side.value, Items)]
    if len(named) != 2 or named[0].name != named[1].name:
        return None
    low, high = (_bound(named, end) for end in (0, 1))
    if low is None or high is None:
        return None
    return Named(named[0].name, Items(_BY_ENDS[low[0], high[0]], (low[1], high[1]), text), text)


def _bound(sides: list[Named], end: int) -> tuple[str, Value] | None:
    r"""Mark and value of the interval with an end here: `(` and 1 of `(1, \infty)` and `(-\infty, 2)`."""
    found = []
    for side in sides:
        assert isinstance(side.value, Items)
        if "\\infty" not in side.value.values[end].text:
            found.append((side.value.kind[end], side.value.values[end]))
    return found[0] if len(found) == 1 else None


_BY_ENDS: dict[tuple[str, str], Kind] = {("(", ")"): "()", ("(", "]"): "(]", ("[", ")"): "[)", ("[", "]"): "[]"}


def _bracketed(text: str, depth: int) -> Value | None:
    if text.startswith("\\{") and text.endswith("\\}") and matches(text, 1):
        inner = _read(_SUCH_THAT.sub("", text[2:-2], count=1), depth + 1)
        if isinstance(inner, Named) and isinstance(inner.value, Items) and inner.value.kind not in ("list", "set"):
            return inner
        return Items("set", inner.values if isinstance(inner, Items) and inner.kind == "list" else (inner,), text)
    if len(text) < 3 or text[0] not in "([" or text[-1] not in ")]" or not matches(text, 0):
        return None
    inner = _read(text[1:-1], depth + 1)
    if not isinstance(inner, Items) or inner.kind != "list" or len(split(text[1:-1], ",;")) < 2:
        # `(5)` is 5; `(x+1)` of `(x+1)(x-1)` never comes here.
        return inner if text[0] + text[-1] in ("()", "[]") else None
    kind = _BY_ENDS[text[0], text[-1]]
    return Items("vector" if kind == "[]" and len(inner.values) != 2 else kind, inner.values, text)
