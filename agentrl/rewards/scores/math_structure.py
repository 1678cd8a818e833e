r"""Reads the structure of an answer: lists, sets, tuples, intervals, unions, matrices and equations of expressions.

`x = \pm 2` becomes `Named("x", Items("list", (Expression("+2"), Expression("-2"))))`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from agentrl.rewards.scores.math_layout import clean, unwrap
from agentrl.rewards.scores.math_text import number_readings, to_exact
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
_AND = re.compile(r"\\text\s*\{\s*and\s*\}|(?<![A-Za-z\\])and(?![A-Za-z])|\\(?:land|wedge)(?![A-Za-z])")
_NAME = r"(?:[A-Za-z]|\\[A-Za-z]+)(?:_\{?\w+\}?|')?(?:\([\w, ]+\))?"
_IS_NAME = re.compile(
    rf"{_NAME}|\\(?:vec|hat|overline|text)\{{[A-Za-z]+\}}|\\begin\{{[pb]matrix\}}[A-Za-z_{{}}\d\\&\s]*\\end\{{[pb]matrix\}}|\((?:\s*{_NAME}\s*,)+\s*{_NAME}\s*\)|[A-Za-z]{{2,3}}"
)
_IN = re.compile(rf"({_NAME})\s*\\in(?![A-Za-z])\s*(.+)")
_ORDER = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>")
_MATRIX = re.compile(
    r"(?:\[|\(|)\s*\\begin\{(?:[pbB]?matrix|smallmatrix|array)\}(?:\{[lcr| ]*\})?"
    r"((?:(?!\\begin|\\end).)*)\\end\{\w+\}\s*(?:\]|\)|)"
)
_TRANSPOSED = re.compile(r"\s*\^\s*\{?\s*(?:T|\\top|\\text\{\s*T\s*\})\s*\}?(?!\w)")
_TIMES = re.compile(r"\s*(?:\\cdot|\\times|\*)\s*")
_FACTOR = re.compile(r"[\w\s.^{}()\\/+-]*")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_COUNTED = re.compile(r"([-+]?(?:\d[\d.,/:]*|\.\d+))(?:\s*((?<=\s)[A-Za-z][A-Za-z .]*|st|nd|rd|th|[a-z]{2,3}|%))?")
"""What may stand in `\\text{}` as a whole: `3`, `3 apples`, `7th`, `5cm`, `5%`."""
_REALS = re.compile(r"\\mathbb\{R\}|\\R|\\Re|ℝ|(?:\\text\{)?\s*all real(?: number)?s\s*\}?", re.IGNORECASE)
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
    if rows := _matrix(text):
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
    if ("\\pm" in text or "\\mp" in text) and not text.startswith("\\{"):
        upper = re.sub(r"\\pm(?![A-Za-z])", "+", re.sub(r"\\mp(?![A-Za-z])", "-", text))
        lower = re.sub(r"\\pm(?![A-Za-z])", "-", re.sub(r"\\mp(?![A-Za-z])", "+", text))
        return Items("list", (_read(upper, depth + 1), _read(lower, depth + 1)), text)
    return _bracketed(text, depth) or Expression(*split_unit(text))


def _matrix(text: str) -> list[list[str]] | None:
    r"""The cells of a matrix, of a transposed one or vector, and of a sum of multiples: `2M - M^T`."""
    if (
        (end := _TRANSPOSED.search(text))
        and end.end() == len(text)
        and text[0] == "("
        and _matches(text[: end.start()], 0)
    ):
        return [[cell] for cell in split(text[1 : end.start() - 1], ",")]
    found = list(_MATRIX.finditer(text))
    total: list[list[str]] | None = None
    start = 0
    for number, matrix in enumerate(found):
        rows = [row.split("&") for row in re.split(r"\\\\", matrix[1]) if row.strip()]
        factor = text[start : matrix.start()]
        start = matrix.end()
        if turned := _TRANSPOSED.match(text, start):
            start, rows = turned.end(), [list(column) for column in zip(*rows, strict=False)]
        if len(found) == 1 and (after := _TIMES.match(text, start)):  # `M \cdot 2`
            factor, start = f"{factor}({text[after.end() :]})", len(text)
        scaled = _scaled(rows, factor, first=number == 0)
        if scaled is None or (total is not None and list(map(len, total)) != list(map(len, scaled))):
            return None
        total = (
            scaled
            if total is None
            else [[f"{a}+({b})" for a, b in zip(*two, strict=True)] for two in zip(total, scaled, strict=True)]
        )
    return total if start == len(text) else None


def _scaled(rows: list[list[str]], factor: str, first: bool) -> list[list[str]] | None:
    """A matrix times what stands before it: a sign, a number or an expression; None if it is something else."""
    factor = factor.strip()
    sign, rest = ("-" if factor[:1] == "-" else "", factor.lstrip("+-")) if factor[:1] in ("+", "-") else ("", factor)
    rest = re.sub(r"(?:\\cdot|\\times|\*)\s*$", "", rest).strip()
    if not (first or factor[:1] in ("+", "-")) or not _FACTOR.fullmatch(rest) or len(split(rest, "+-")) > 1:
        return None
    if not rest:
        return [[f"{sign}({cell})" if sign else cell for cell in row] for row in rows]
    return [[rf"{sign}({rest})\cdot({cell})" for cell in row] for row in rows]


_EXCEPT = re.compile(
    rf"(?:\\mathbb\s*\{{R\}}|\\R|ℝ|\(-\\infty\s*,\s*\\infty\s*\))\s*(?:\\setminus|\\backslash|-)\s*\\\{{(?P<those>.*)\\\}}"
    rf"|(?P<name>{_NAME})\s*\\ne(?![A-Za-z])\s*(?P<that>.+)"
)


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
    r"""`x > 1 \text{ and } x < 2` as `1 < x < 2`; with "or" it is a union."""
    sides = [_inequality(side.strip(), depth) for side in _AND.split(text)] if _AND.search(text) else []
    if len(sides) != 2:
        return None
    ends: dict[int, Value] = {}
    marks = {}
    for side in sides:
        if not isinstance(side, Named) or not isinstance(side.value, Items):
            return None
        for place, value in enumerate(side.value.values):
            if "\\infty" not in getattr(value, "text", ""):
                ends[place], marks[place] = value, side.value.kind[place]
    if len(ends) != 2 or sides[0].name != sides[1].name:
        return None
    return Named(sides[0].name, Items(_BY_ENDS[marks[0], marks[1]], (ends[0], ends[1]), text), text)


_BY_ENDS: dict[tuple[str, str], Kind] = {("(", ")"): "()", ("(", "]"): "(]", ("[", ")"): "[)", ("[", "]"): "[]"}


def _bracketed(text: str, depth: int) -> Value | None:
    if text.startswith("\\{") and text.endswith("\\}") and _matches(text, 1):
        inner = _read(_SUCH_THAT.sub("", text[2:-2], count=1), depth + 1)
        if isinstance(inner, Named) and isinstance(inner.value, Items) and inner.value.kind not in ("list", "set"):
            return inner
        return Items("set", inner.values if isinstance(inner, Items) and inner.kind == "list" else (inner,), text)
    if len(text) < 3 or text[0] not in "([" or text[-1] not in ")]" or not _matches(text, 0):
        return None
    inner = _read(text[1:-1], depth + 1)
    if not isinstance(inner, Items) or inner.kind != "list" or len(split(text[1:-1], ",;")) < 2:
        # `(5)` is 5; `(x+1)` of `(x+1)(x-1)` never comes here.
        return inner if text[0] + text[-1] in ("()", "[]") else None
    kind = _BY_ENDS[text[0], text[-1]]
    return Items("vector" if kind == "[]" and len(inner.values) != 2 else kind, inner.values, text)


def _matches(text: str, start: int) -> bool:
    """Whether the bracket at `start` is closed by the last one, whatever the kinds: `[1, 2)` matches."""
    depth = 0
    for place, sign in enumerate(text[start:], start):
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0:
            return place == len(text) - 1
    return False


def split(text: str, marks: str) -> list[str]:
    r"""Split at marks that stand in no bracket: `(1, 2), 3` at `,` -> `(1, 2)` and ` 3`.

    Args:
        text: what to split.
        marks: single characters, or one command such as `\cup`.
    """
    parts, depth, start, place = [], 0, 0, 0
    while place < len(text):
        sign = text[place]
        depth += (sign in "([{") - (sign in ")]}")
        width = len(marks) if marks[0] == "\\" else 1
        hit = text.startswith(marks, place) if marks[0] == "\\" else sign in marks
        if sign == "=" and (place == 0 or text[place - 1] in "\\<>!:"):
            hit = False
        if depth <= 0 and hit:
            parts.append(text[start:place])
            start = place + width
            place += width
        else:
            place += 1
    return [*parts, text[start:]]
