r"""Removes from the text of a mathematical answer what is only layout, so that each thing has one spelling."""

from __future__ import annotations

import functools
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
        "€": "",
        "£": "",
        "⁄": "/",
        "≠": r"\ne ",
        "∈": r"\in ",
        "…": r"\dots ",
        "½": r"\frac{1}{2}",
        "⅓": r"\frac{1}{3}",
        "⅔": r"\frac{2}{3}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
        "θ": r"\theta ",
        "α": r"\alpha ",
        "β": r"\beta ",
        "φ": r"\phi ",
        "λ": r"\lambda ",
    }
)
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "₀₁₂₃₄₅₆₇₈₉"
_RAISED_ASCII = str.maketrans(_RAISED, "0123456789-+")
_LOWERED_ASCII = str.maketrans(_LOWERED, "0123456789")
_BRACKETS = {r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lbrack": "[", r"\rbrack": "]"}
_ANSWER = r"(?:(?:the|my|our)\s+)?(?:(?:final|correct|right)\s+)?answer(?:\s+is(?!\s+not))?\s*[:=]?"
_TOKEN = r"([0-9a-zA-Z]|\\(?:pi|theta|alpha|beta|phi|lambda)(?![a-zA-Z]))"
"""What `\\frac` takes without braces."""
_BASE_WORDS = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}
_BASE_WORDS |= {"ten": "10", "sixteen": "16"}
_OPTION = r"(?:option|choice)\s*:?\s*\(?([A-J])\)?[.:]?\s*\}?\s*$"
_UNIT = r"\\text\{[^{}]*\}(?:\^\{?\d\}?)?"
_ORDINAL = r"\\text\{\s*(?:st|nd|rd|th)\s*\}"
_LAYOUT: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\\displaystyle|\\textstyle|\\limits|\\phantom\{[^{}]*\}|\\(?:left|right)(?![a-zA-Z])\.?"), ""),
    (re.compile(r"\\[bB]igg?[lrm]?(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:tiny|small|normalsize|[lL]arge|LARGE|[hH]uge|bf|rm|sf|tt)(?![a-zA-Z])(?!\s*\{)"), ""),
    (re.compile(r"\\(?:text)?color\s*\{[^{}]*\}|\\therefore(?![a-zA-Z])|^\s*=(?!=)"), ""),
    (re.compile(r"^\s*\*\*([^*]+)\*\*[\s.]*$"), r"\1"),
    (re.compile(r"\\mathdollar(?![a-zA-Z])|\\text\{\s*\\?\$\s*\}"), r"\$"),
    (
        re.compile(
            r"\\\$\s*([-+]?\s*(?:\d|(?<=\d)(?:\{,\}|,\\!|\\,|,|\.)(?=\d)|\.(?=\d))+)(?=\s*(?:[,;)]|\.?\s*\$?\.?$))"
        ),
        r"\1\\text{ dollars}",
    ),
    (re.compile(r"\\!|\\\(|\\\)|\\\$|\$"), ""),
    (re.compile(rf"[{_RAISED}]+"), lambda found: "^{" + found[0].translate(_RAISED_ASCII) + "}"),
    (re.compile(rf"[{_LOWERED}]+"), lambda found: "_{" + found[0].translate(_LOWERED_ASCII) + "}"),
    (re.compile(r"√\s*(\d+(?:\.\d+)?|[a-zA-Z]|\\pi)"), r"\\sqrt{\1}"),
    (re.compile(r"√"), r"\\sqrt"),
    (re.compile(r"\\(?:[,;: ]|quad|qquad|thinspace|enspace|hspace\{[^{}]*\})|~"), " "),
    (re.compile(r"\\[dtc](frac|binom)(?![a-zA-Z])"), r"\\\1"),
    (
        re.compile(
            r"\\(?:text(?:bf|it|rm|normal|sf|tt|up)|math(?:rm|bf|it|sf|tt)|mbox|operatorname\*?|bf|rm|sf|tt)\s*\{"
        ),
        r"\\text{",
    ),
    (re.compile(r"\\(?:textbf|textrm|mathrm|mathbf)\s+([A-Za-z0-9])(?![A-Za-z])"), r"\\text{\1}"),
    (re.compile(r"\\(?:boldsymbol|bm|underline|fbox|boxed)\s*\{"), "{"),
    (re.compile(rf"^\s*\\text\{{\s*{_ANSWER}\s*\}}", re.IGNORECASE), ""),
    (re.compile(rf"^\s*(\\text\{{)?\s*{_ANSWER}\s+(?=\S)", re.IGNORECASE), lambda found: found[1] or ""),
    (re.compile(r"^\s*\\text\{(?![^{}]*\b(?:not|no)\b)[^{}]*(?::|\bis|\bequals)\s*\}\s*(?=\S)"), ""),
    (
        re.compile(
            r"^\s*\\text\{\s*(?:about|approximately|approx\.?|roughly|exactly|only)\s*\}\s*(?=\S)", re.IGNORECASE
        ),
        "",
    ),
    (re.compile(r"\\text\{\s*([:;,])\s*\}|\{(:)\}"), lambda found: found[1] or found[2]),
    (re.compile(r"(?<=[\d}\])])\s*(?:\\text\{\s*to\s*\}|(?<=\d)\s+to\s)\s*(?=[\d\\])"), ":"),
    (re.compile(r"(?<![A-Za-z])([aApP])\.\s*[mM]\.?(?![A-Za-z])"), lambda found: found[1].lower() + "m"),
    (re.compile(r"\\text\{\s*plus or minus\s*\}|(?<![A-Za-z])plus or minus(?=\s+[\d.\\])"), r"\\pm "),
    (re.compile(r"(?<![\w)}] )(?<![\w)}])\\text\{\s*(?:negative|minus)\s*\}\s*(?=[\d.\\({a-z])", re.IGNORECASE), "-"),
    (re.compile(r"(?<![\w)}] )(?<![\w)}])(?:negative|minus)\s+(?=[\d.\\])", re.IGNORECASE), "-"),
    (
        re.compile(r"_\s*\{?\s*\\text\s*\{\s*(?:base\s+)?(\d+|[a-z]+)\s*\}\s*\}?"),
        lambda found: (
            "_{" + _BASE_WORDS.get(found[1], found[1]) + "}"
            if found[1] in _BASE_WORDS or found[1].isdigit()
            else found[0]
        ),
    ),
    (re.compile(r"\\lg(?![a-zA-Z])"), r"\\log_{10}"),
    (re.compile(r"\\(pmod|bmod|mod)\s*(\w+)"), r"\\\1{\2}"),
    (re.compile(r"\\not\s*=|\\neq(?![a-zA-Z])"), r"\\ne "),
    (re.compile(rf"(?<=\d)\s*(?:\^\s*)?(?:{_ORDINAL}|\{{\s*{_ORDINAL}\s*\}})|(?<=[04-9])\^\s*\{{\s*th\s*\}}"), ""),
    (re.compile(r"\\[lc]?dots[cbmio]?(?![a-zA-Z])|\.\.\."), r"\\dots "),
    (re.compile(r"\\(mathbb|mathcal|hat|vec|bar|overline)\s+([A-Za-z])(?![a-zA-Z])"), r"\\\1{\2}"),
    (
        re.compile(r"\^\s*(?:\\prime(?![a-zA-Z])|\{\s*\\prime(?:\s*\\prime)*\s*\})"),
        lambda found: "'" * found[0].count("prime"),
    ),
    (re.compile(r"(?<=\d)\s*\^\s*(?:o(?![a-zA-Z])|\{\s*o\s*\})"), r"\\degree "),
    (re.compile(r"\^\s*\{?\s*\\text\{\s*o\s*\}\s*\}?"), r"\\degree "),
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
    (re.compile(r"\\text\{\s*(?:the\s+)?empty set\s*\}|^\s*(?:the\s+)?empty set\s*$", re.IGNORECASE), r"\\emptyset "),
    (re.compile(rf"^\s*(?:\\text\{{)?\s*{_OPTION}", re.IGNORECASE), r"(\1)"),
    (re.compile(rf"\\frac\s*\{{\s*({_UNIT})\s*\}}\s*\{{\s*({_UNIT})\s*\}}"), r"\1/\2"),
    (re.compile(r"\\text\{([^{}]*)\^\{(-?\d)\}([^{}]*)\}"), r"\\text{\1^\2\3}"),
    (re.compile(r"(?<![a-zA-Z\\])(?:infinity|inf)(?![a-zA-Z])|\\text\{\s*[iI]nfinity\s*\}"), r"\\infty "),
    (re.compile(r"(?<![a-zA-Z\\])(pi|sqrt)(?![a-zA-Z])"), r"\\\1"),
    (re.compile(rf"\\(frac|binom)\s*{_TOKEN}\s*{_TOKEN}"), r"\\\1{\2}{\3}"),
    (re.compile(rf"\\(frac|binom)\s*{_TOKEN}\s*\{{"), r"\\\1{\2}{"),
    (re.compile(rf"\\(frac|binom)\s*(\{{[^{{}}]*\}})\s*{_TOKEN}"), r"\\\1\2{\3}"),
    (re.compile(r"\{\s*(\w+)\s*\\choose\s*(\w+)\s*\}"), r"\\binom{\1}{\2}"),
    (re.compile(r"(?<![\w{])(\w+)\s*\\choose\s*(\w+)"), r"\\binom{\1}{\2}"),
    (re.compile(r"\\sqrt\s*(\[[^\[\]]*\])\s*(\w)"), r"\\sqrt\1{\2}"),
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


_ENVIRONMENT = re.compile(
    r"\s*\\begin\{(aligned|align\*?|gathered|gather\*?|split|cases)\}(?P<body>(?:(?!\\begin).)*)\\end\{\1\}\s*",
    re.DOTALL,
)


def _equations(found: re.Match[str]) -> str:
    r"""Equations one below the other as a list: `x &= 1 \\\\ y &= 2` -> `x = 1, y = 2`; not the cases of a function."""
    body = re.sub(r"&\s*=|=\s*&", "=", found["body"])
    rows = [row for row in _ROW_BREAK.split(body) if row.strip()]
    return found[0] if "&" in body or not all("=" in row for row in rows) else ", ".join(rows)


@functools.lru_cache(1024)
def clean(text: str) -> str:
    r"""The text without what is only layout: `$\dfrac12.$` -> `\frac{1}{2}`, `1\,234` -> `1234`."""
    text = text.translate(_UNICODE)
    text = _ENVIRONMENT.sub(_equations, text)
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
