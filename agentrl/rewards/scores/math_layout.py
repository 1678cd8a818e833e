r"""Removes from the text of a mathematical answer what is only layout, so that each thing has one spelling."""

from __future__ import annotations

import re
from collections.abc import Callable

_UNICODE = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "×": r"\times ",
        "·": r"\cdot ",
        "÷": "/",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "∪": r"\cup ",
        "±": r"\pm ",
        "°": r"\degree ",
        "\u00a0": " ",
        "\u2009": " ",
        "\u202f": " ",
        "\n": " ",
        "\t": " ",
        "€": "$",
        "£": "$",
    }
)
_BRACKETS = {r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lbrack": "[", r"\rbrack": "]"}
_ORDINAL = r"\\text\{\s*(?:st|nd|rd|th)\s*\}"
_LAYOUT: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\\displaystyle|\\textstyle|\\limits|\\phantom\{[^{}]*\}|\\(?:left|right)(?![a-zA-Z])\.?"), ""),
    (re.compile(r"\\[bB]igg?[lrm]?(?![a-zA-Z])"), ""),
    (re.compile(r"\\!|\\\(|\\\)|\\\$|\$"), ""),
    (re.compile(r"\\(?:[,;: ]|quad|qquad|thinspace|enspace|hspace\{[^{}]*\})|~"), " "),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (
        re.compile(r"\\(?:text(?:bf|it|rm|normal|sf|tt)|mathrm|mathbf|mathit|mathsf|mbox|operatorname|rm)\s*\{"),
        r"\\text{",
    ),
    (re.compile(rf"(?<=\d)\s*(?:\^\s*)?(?:{_ORDINAL}|\{{\s*{_ORDINAL}\s*\}})|(?<=[04-9])\^\s*\{{\s*th\s*\}}"), ""),
    (re.compile(r"\\[lc]?dots[cbmio]?(?![a-zA-Z])"), r"\\dots "),
    (re.compile(r"\\(mathbb|mathcal)\s+([A-Z])(?![a-zA-Z])"), r"\\\1{\2}"),
    (
        re.compile(r"\^\s*(?:\\prime(?![a-zA-Z])|\{\s*\\prime(?:\s*\\prime)*\s*\})"),
        lambda found: "'" * found[0].count("prime"),
    ),
    (re.compile(r"(?<=\d)\s*\^\s*(?:o(?![a-zA-Z])|\{\s*o\s*\})"), r"\\degree "),
    (re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\text\{\s*degrees?\s*\}|(?<=\d)\s*degrees?\b"), r"\\degree "),
    (re.compile(r"\\degree\s*\\degree"), r"\\degree "),
    (re.compile(r"\\leq?q?(?:slant)?(?![a-zA-Z])|<="), r"\\le "),
    (re.compile(r"\\geq?q?(?:slant)?(?![a-zA-Z])|>="), r"\\ge "),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"\\(?:lbrace|rbrace|lbrack|rbrack)(?![a-zA-Z])"), lambda found: _BRACKETS[found[0]]),
    (re.compile(r"\\langle(?![a-zA-Z])"), "("),
    (re.compile(r"\\rangle(?![a-zA-Z])"), ")"),
    (re.compile(r"\\(?:emptyset|varnothing)(?![a-zA-Z])|∅|\\\{\s*\\\}"), r"\\emptyset "),
    (re.compile(r"\\text\{\s*([eip])\s*\}"), r"{\1}"),
    (re.compile(r"\\text\{\s*\}"), ""),
    (re.compile(r"(?<![a-zA-Z\\])(?:infinity|inf)(?![a-zA-Z])|\\text\{\s*[iI]nfinity\s*\}"), r"\\infty "),
    (re.compile(r"(?<![a-zA-Z\\])(pi|sqrt)(?![a-zA-Z])"), r"\\\1"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*(\d)\s*\{"), r"\\frac{\1}{"),
    (re.compile(r"\\frac\s*(\{[^{}]*\})\s*(\d)"), r"\\frac\1{\2}"),
    (re.compile(r"\\sqrt\s*(\w)"), r"\\sqrt{\1}"),
    (re.compile(r"\\sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\\%|\s*\\text\{\s*(?:percent|%)\s*\}|(?<=\d)\s*percent\b"), "%"),
)
# Spaces around a break mean nothing, nor does the gap it may ask for: `1 \\[4pt] 2` is `1\\2`.
_ROW_BREAK = re.compile(r"\\\\\*?(?:\s*\[\s*-?[\d.]+\s*[a-z]{2}\s*\])?")
# `1{,}234` is a thousands mark, `1{,}5` a decimal comma.
_BRACED_GROUPS = re.compile(r"(?<![\d.,}])\d{1,3}(?:\{,\}\d{3})+(?![\d{])")
_BRACED_DECIMAL = re.compile(r"(\d)\{,\}(\d)")
_SPACED_GROUPS = re.compile(r"(?<![\d.,/])(?<!\d )\d{1,3}(?: \d{3})+(?![\d/])(?! \d)(?! ?/)")
_FRENCH = re.compile(r"([\[\]])([^\[\]()]*,[^\[\]()]*)([\[\]])")
_POINT_GROUPS = re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?(?![\d.,])")


def clean(text: str) -> str:
    r"""The text without what is only layout: `$\dfrac12.$` -> `\frac{1}{2}`, `1\,234` -> `1234`."""
    text = text.translate(_UNICODE)
    # Row by row, since the second half of a break begins no command: `1 \\ 2` holds no `\ `.
    rows = _ROW_BREAK.split(text) if "\\begin" in text else [text]
    text = r"\\".join(map(_without_layout, rows))
    text = _BRACED_GROUPS.sub(lambda found: found[0].replace("{,}", ""), text)
    text = _BRACED_DECIMAL.sub(r"\1.\2", text)
    text = re.sub(" +", " ", text).strip()
    text = _SPACED_GROUPS.sub(lambda found: found[0].replace(" ", ""), text)
    text = _FRENCH.sub(lambda found: "(["[found[1] == "["] + found[2] + ")]"[found[3] == "]"], text)
    text = _POINT_GROUPS.sub(lambda found: without_marks(found[0]), text)
    return unwrap(text.rstrip(" .,;\\").strip())


def _without_layout(text: str) -> str:
    for pattern, instead in _LAYOUT:
        text = pattern.sub(instead, text)
    return text


_MOST_BRACES = 20


def unwrap(text: str) -> str:
    """The text without braces around the whole of it: `{1}` -> `1`, but `{1}{2}` stays."""
    for _ in range(_MOST_BRACES):
        if not (text.startswith("{") and text.endswith("}") and closing(text, 0) == len(text) - 1):
            break
        text = text[1:-1].strip()
    return text


def closing(text: str, start: int) -> int:
    """Place of the brace that closes the one at `start`; -1 if none does."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return -1


def without_marks(number: str) -> str:
    """`1,234.5` and `1.234,5` -> `1234.5`; `1.234.567` -> `1234567`."""
    if number.rfind(",") > number.rfind(".") > 0:  # the comma is the decimal one
        return number.replace(".", "").replace(",", ".")
    return number.replace(",", "") if "," in number else number.replace(".", "")
