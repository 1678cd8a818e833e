r"""Reads the text of a mathematical answer, without its layout (`math_layout`): numbers, words, bases and choices.

Everything here is text only: no computer algebra, so it costs microseconds and runs in the caller's process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from agentrl.rewards.scores.math_layout import without_marks

_COMMA_GROUPS = re.compile(
    r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])|(?<![\d.,])[1-9]\d{0,2}(?:\.\d{3})+,\d+(?![\d.,])"
)


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
        return found[0] if depth[found.start()] or found.start() > end else without_marks(found[0])

    read = _COMMA_GROUPS.sub(number, text)
    return [read] if read == text else [read, text]


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
_GOES_ON = re.compile(r"([+-]?)(\d*)\.(\d*?)(\d{1,20}?)(\4+)\s*\\dots")
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
    if found := _GOES_ON.fullmatch(text):
        sign, whole, start, period, more = found.groups()
        # three sixes say that `0.1666\dots` goes on so; `3.1415926\dots` only that it does
        return _repeating(sign, whole, start, period) if len(period + more) >= 3 else None
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


_ARTICLE = re.compile(r"^(?:an?|the)\s+(?=\w\w|\w-)")
_EXCLAMATION = re.compile(r"[^\W\d_]{2}[.!]+$")
_TEXT_PIECE = re.compile(r"\\text\s*\{([^{}]*)\}")


def words_of(text: str) -> str | None:
    r"""The words of an answer that is text only, in small letters: `\text{ Friday}` -> `friday`; else None."""
    if "\\text" not in text:
        return None
    plain = " ".join(_TEXT_PIECE.sub(r" \1 ", text).replace("(", " ").replace(")", " ").split())
    return _bare(plain.lower()) if "\\" not in plain and re.search(r"[^\W\d]", plain) else None


def plain_words(text: str) -> str:
    r"""The same for words that stand outside of `\text`: `June 5` -> `june 5`."""
    return _bare(" ".join(text.lower().split()))


def _bare(words: str) -> str:
    """Without the article and the marks at the end: `an ellipse.` -> `ellipse`; but `7!` and `n!` are factorials."""
    return _ARTICLE.sub("", words.rstrip(".!") if _EXCLAMATION.search(words) else words.rstrip("."))


_AROUND_DIGITS = re.compile(r"\\text\s*\{\s*([0-9A-Z]+)\s*\}(?=[0-9A-Z\\]*_)|^\(([0-9A-Z ]+)\)(?=_)")
_BASED = re.compile(r"([0-9A-Z]+)_\{?(\d{1,2})\}?")


def split_base(text: str) -> tuple[str, int | None]:
    """Digits and base: `1010_2` -> (`1010`, 2), `1010` -> (`1010`, None), `A_1` -> (`A_1`, None)."""
    found = _BASED.fullmatch(_AROUND_DIGITS.sub(r"\1\2", text).replace(" ", ""))
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


def matches(text: str, start: int) -> bool:
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
