r"""Reads the text of a mathematical answer: layout removed, then numbers, units, words and choices.

Everything here is text only: no computer algebra, so it costs microseconds and runs in the caller's process.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction

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
_COMMA_GROUPS = re.compile(
    r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])|(?<![\d.,])[1-9]\d{0,2}(?:\.\d{3})+,\d+(?![\d.,])"
)


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
    text = _POINT_GROUPS.sub(lambda found: _without_marks(found[0]), text)
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


def number_readings(text: str) -> list[str]:
    """The text with thousands marks removed, and as it is if that differs.

    `1,234` may be a number or the list of 1 and 234; inside brackets, `(1,234)`, the comma always separates.
    """
    depth = [0]
    for sign in text:
        depth.append(depth[-1] + (sign in "([") - (sign in ")]"))
    braces = text.find("\\{")
    end = len(text) if braces < 0 else braces

    def number(found: re.Match[str]) -> str:
        return found[0] if depth[found.start()] or found.start() > end else _without_marks(found[0])

    read = _COMMA_GROUPS.sub(number, text)
    return [read] if read == text else [read, text]


def _without_marks(number: str) -> str:
    """`1,234.5` and `1.234,5` -> `1234.5`; `1.234.567` -> `1234567`."""
    if number.rfind(",") > number.rfind(".") > 0:  # the comma is the decimal one
        return number.replace(".", "").replace(",", ".")
    return number.replace(",", "") if "," in number else number.replace(".", "")


@dataclass(frozen=True, slots=True)
class Number:
    r"""A number that is written out: `3`, `0.5`, `\frac{1}{2}`, `1 1/2`, `1.2 \times 10^{3}`."""

    value: Fraction
    decimals: int = 0
    """Digits after the point, of a plain decimal; else 0."""
    digits: int = 0
    """Its significant digits."""

    def rounds(self, value: Fraction) -> bool:
        """Whether it is a plain decimal of at least six places and digits, and `value` rounded to as many."""
        exact_enough = min(self.decimals, self.digits) >= 6
        return exact_enough and abs(value - self.value) * 2 * 10**self.decimals <= 1


_DECIMAL = r"(?:\d+\.?\d*|\.\d+)"
_PLAIN = re.compile(rf"[+-]?\s*{_DECIMAL}")
_POWER_OF_TEN = re.compile(
    rf"([+-]?\s*{_DECIMAL})(?:\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*\{{?\s*([+-]?\d+)\s*\}}?|[eE]([+-]?\d+))"
)
_RATIO = re.compile(
    rf"([+-]?)\s*(?:(\d+)\s*)?\\frac\s*\{{\s*([+-]?\s*{_DECIMAL})\s*\}}\s*\{{\s*([+-]?\s*{_DECIMAL})\s*\}}"
)
_REPEATING = re.compile(r"([+-]?)(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{?(\d+)\}?")
_SLASH = re.compile(rf"([+-]?)\s*(?:(\d+)(?:\s+|\s*\+\s*))?([+-]?{_DECIMAL})\s*/\s*([+-]?{_DECIMAL})")
_MOST_DIGITS = 4000


def to_exact(text: str) -> Number | None:
    """The number that `text` writes out; None if it is anything else, or would take over 4,000 digits."""
    if len(text) > _MOST_DIGITS:
        return None
    text = text.strip()
    for opening, end in (("(", ")"), ("{", "}")):
        if text.startswith(opening) and text.endswith(end):
            text = text[1:-1].strip()
    if _PLAIN.fullmatch(text):
        written = text.replace(" ", "")
        decimals = len(written.partition(".")[2])
        return Number(Fraction(_decimal(written)), decimals, len(written.lstrip("+-").replace(".", "").lstrip("0")))
    if found := _POWER_OF_TEN.fullmatch(text):
        power = found[2] or found[3]
        if len(power) > 5 or abs(int(power)) > _MOST_DIGITS:
            return None
        return Number(Fraction(_decimal(found[1].replace(" ", ""))) * Fraction(10) ** int(power))
    if found := _REPEATING.fullmatch(text):
        return _repeating(*found.groups())
    found = _RATIO.fullmatch(text) or _SLASH.fullmatch(text)
    return _fraction(found) if found else None


def _repeating(sign: str, whole: str, start: str, period: str) -> Number:
    r"""`0.1\overline{6}` is (16 - 1) / 90."""
    top = int(whole + start + period) - int((whole + start) or 0)
    value = Fraction(top, (10 ** len(period) - 1) * 10 ** len(start))
    return Number(-value if sign == "-" else value)


def _fraction(found: re.Match[str]) -> Number | None:
    """`1 1/2` is one and a half: a whole number before a fraction is added to it."""
    sign, whole, top, bottom = found.groups()
    divisor = Fraction(_decimal(bottom.replace(" ", "")))
    if divisor == 0:
        return None
    part = Fraction(_decimal(top.replace(" ", ""))) / divisor
    if whole is not None:
        if top.strip()[0] in "+-" or bottom.strip()[0] in "+-":
            return None
        part += int(whole)
    return Number(-part if sign == "-" else part)


def _decimal(written: str) -> Decimal:
    try:
        return Decimal(written)
    except InvalidOperation as error:  # pragma: no cover - the patterns admit decimals only
        raise ValueError(written) from error


_TEXT_PIECE = re.compile(r"\\text\s*\{([^{}]*)\}")


def words_of(text: str) -> str | None:
    r"""The words of an answer that is text only, in small letters: `\text{ Friday}` -> `friday`; else None."""
    if "\\text" not in text:
        return None
    plain = " ".join(_TEXT_PIECE.sub(r" \1 ", text).replace("(", " ").replace(")", " ").split())
    return plain.lower().rstrip(".!") if "\\" not in plain and re.search(r"[^\W\d]", plain) else None


def plain_words(text: str) -> str:
    r"""The same for words that stand outside of `\text`: `June 5` -> `june 5`."""
    return " ".join(text.lower().split()).rstrip(".!")


_BASED = re.compile(r"([0-9A-Z]+)_\{?(\d{1,2})\}?")


def split_base(text: str) -> tuple[str, int | None]:
    """Digits and base: `1010_2` -> (`1010`, 2), `1010` -> (`1010`, None), `A_1` -> (`A_1`, None)."""
    found = _BASED.fullmatch(text)
    if found is None or not 2 <= int(found[2]) <= 36 or any(int(digit, 36) >= int(found[2]) for digit in found[1]):
        return text, None
    return found[1], int(found[2])


_CHOICE = re.compile(r"(?:\\text\s*\{\s*)?\(?\s*([A-J])\s*(?:\)|[.:](?=\s|\}))\s*\}?[.:]?\s*(.*)", re.DOTALL)
# `(A) and (C)` is a list
_MORE_CHOICES = re.compile(r"(?:\\text\s*\{\s*)?(?:[,;&]|\\&|(?:and|or)(?![A-Za-z]))|\\text\s*\{\s*\(|\([A-J]\)")


def split_choice(text: str) -> tuple[str | None, str]:
    r"""Letter and content of a choice: `\text{(B)} 12` -> (`B`, `12`), `(B)` -> (`B`, ``), `12` -> (None, `12`)."""
    found = _CHOICE.fullmatch(text)
    if found is None or _MORE_CHOICES.match(found[2]):
        return None, text
    return found[1], found[2].strip()


_BRACED_SIGN = re.compile(r"([_^])\{(\w)\}(?!\w)")


def squeeze(text: str) -> str:
    """The text without spaces and braces that mean nothing: `x_{1} + 1` -> `x_1+1`.

    `1 1/2` keeps its space, and is not `11/2`.
    """
    return _BRACED_SIGN.sub(r"\1\2", re.sub(r"(?<![A-Za-z0-9])\s+|\s+(?![A-Za-z0-9])", "", text))
