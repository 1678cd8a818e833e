r"""Reads matrices, and what is computed of them: `2M - N^T` has the cells `2\cdot(m)+(-(n))`."""

from __future__ import annotations

import re

from agentrl.rewards.scores.math_text import matches, split

Cells = list[list[str]]

_MATRIX = re.compile(
    r"(?:\[|\(|)\s*\\begin\{(?:[pbB]?matrix|smallmatrix|array)\}(?:\{[lcr| ]*\})?"
    r"((?:(?!\\begin|\\end).)*)\\end\{\w+\}\s*(?:\]|\)|)"
)
_TRANSPOSED = re.compile(r"\s*\^\s*\{?\s*(?:T|\\top|\\text\{\s*T\s*\})\s*\}?(?!\w)")
_TIMES = re.compile(r"\s*(?:\\cdot|\\times|\*)\s*")
_FACTOR = re.compile(r"[\w\s.^{}()\\/+-]*")


def matrix_cells(text: str) -> Cells | None:
    r"""The cells, by rows, of a matrix, a transposed vector, a multiple (`M \cdot 2`) or a sum of those.

    None if the text is something else, or the sizes do not fit.
    """
    if "\\begin" not in text:
        return _column(text)
    found = list(_MATRIX.finditer(text))
    total: Cells | None = None
    start = 0
    for matrix in found:
        rows = [row.split("&") for row in re.split(r"\\\\", matrix[1]) if row.strip()]
        factor, start = text[start : matrix.start()].strip(), matrix.end()
        if total is not None and factor[:1] not in ("+", "-"):
            return None
        if turned := _TRANSPOSED.match(text, start):
            start, rows = turned.end(), [list(column) for column in zip(*rows, strict=False)]
        if len(found) == 1 and (after := _TIMES.match(text, start)):
            factor, start = f"{factor}({text[after.end() :]})", len(text)
        scaled = _scaled(rows, factor)
        total = scaled if total is None or scaled is None else _sum(total, scaled)
        if total is None or scaled is None:
            return None
    return total if start == len(text) else None


def _column(text: str) -> Cells | None:
    """`(1, 2)^T` as a column."""
    end = _TRANSPOSED.search(text)
    if end is None or end.end() < len(text) or text[0] != "(" or not matches(text[: end.start()], 0):
        return None
    return [[cell] for cell in split(text[1 : end.start() - 1], ",")]


def _scaled(rows: Cells, factor: str) -> Cells | None:
    """A matrix times what stands before it: a sign, a number or an expression; None if it is something else."""
    sign, rest = ("-" if factor[:1] == "-" else "", factor.removeprefix("+").removeprefix("-").strip())
    rest = re.sub(r"(?:\\cdot|\\times|\*)\s*$", "", rest).strip()
    if not _FACTOR.fullmatch(rest) or len(split(rest, "+-")) > 1:
        return None
    if not rest:
        return [[f"{sign}({cell})" if sign else cell for cell in row] for row in rows]
    return [[rf"{sign}({rest})\cdot({cell})" for cell in row] for row in rows]


def _sum(one: Cells, other: Cells) -> Cells | None:
    if list(map(len, one)) != list(map(len, other)):
        return None
    return [[f"{a}+({b})" for a, b in zip(*two, strict=True)] for two in zip(one, other, strict=True)]
