r"""Units and words after a number: `5 \text{ cm}^2`, `5 \text{ apples}`, `1.5 \text{ million km}`."""

from __future__ import annotations

import re
from fractions import Fraction

from agentrl.rewards.scores.math_text import to_exact, words_of

# Unit -> its one spelling. Words that are none of these (`apples`) are ignored after a number.
_SPELLINGS = {
    "mm": "millimeter millimeters millimetre millimetres",
    "cm": "centimeter centimeters centimetre centimetres",
    "dm": "decimeter decimeters",
    "m": "meter meters metre metres",
    "km": "kilometer kilometers kilometre kilometres",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard yards",
    "mi": "mile miles",
    "mg": "milligram milligrams",
    "g": "gram grams",
    "kg": "kilogram kilograms",
    "lb": "lbs pound pounds",
    "oz": "ounce ounces",
    "ms": "millisecond milliseconds",
    "s": "sec secs second seconds",
    "min": "mins minute minutes",
    "h": "hr hrs hour hours",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "years yr yrs",
    "ml": "mL milliliter milliliters",
    "l": "L liter liters litre litres",
    "gal": "gallon gallons",
    "mph": "",
    "rad": "radian radians",
    "degree": "degrees deg",
    "dollar": "dollars usd",
    "cent": "cents",
    "euro": "euros eur",
    "hz": "Hz hertz",
    "n": "N newton newtons",
    "j": "J joule joules",
    "w": "W watt watts",
    "v": "V volt volts",
    "a": "A ampere amperes",
    "k": "K kelvin",
    "pa": "Pa pascal pascals",
    "mol": "mole moles",
    "c": "C celsius",
    "f": "F fahrenheit",
    "am": "a.m.",
    "pm": "p.m.",
}
_UNITS = {name: unit for unit, others in _SPELLINGS.items() for name in (unit, *others.split())}
_UNIT_TEXT = re.compile(
    r"^(?P<body>.*?[\d}\])a-zA-Z%])\s*(?P<unit>(?:\\degree\s*)?\\text\s*\{[^{}]*\}\s*(?:\^\s*\{?\s*-?\d\s*\}?)?"
    r"(?:\s*(?:/|\\cdot)?\s*\\text\s*\{[^{}]*\}\s*(?:\^\s*\{?\s*-?\d\s*\}?)?)*|\\degree\s*[CF]?)$"
)
_UNIT_BARE = re.compile(
    r"^(?P<body>.*[\d}])\s*(?P<unit>(?:[a-zA-Z]+\s*(?:\^\s*\{?-?\d\}?)?)"
    r"(?:\s*/\s*[a-zA-Z]+\s*(?:\^\s*\{?-?\d\}?)?|\s+[a-zA-Z]+)*)$"
)
_COUNTS = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {"tenth": 10, "hundredth": 100, "thousandth": 1000, "millionth": 10**6}
_NUMBER_WORDS = {
    **{name + end: Fraction(n) for name, n in _COUNTS.items() for end in ("", "s")},
    **{name + end: Fraction(1, n) for name, n in _PARTS.items() for end in ("", "s")},
    "halves": Fraction(1, 2),
    "thirds": Fraction(1, 3),
    "fifths": Fraction(1, 5),
    "eighths": Fraction(1, 8),
}
_POWER_WORDS = {"squared": "^{2}", "cubed": "^{3}", "factorial": "!"}
_FIRST_WORD = re.compile(r"(?:\\text(?![A-Za-z])|[\s{}()-])*([A-Za-z]+)")
_OTHER_VALUE = re.compile(
    r"\{\s*(?:negative|minus)\s*\}"
    r"|\b(?:or|and)\s+(?:more|less|fewer|greater|smaller|above|below|over|under|higher|lower|older|younger|later|earlier|up)\b"
    r"|\bat\s+(?:least|most)\b|\b(?:remainder|squares? roots?|percent)\b|\{\s*(?:factorial|choose)\b"
)
"""Words after a number that make it something else: `42 \\text{ or more}` is not 42."""
_PROSE = re.compile(r"[a-z]{4,}(?: [a-z]{4,})*")
"""Words without `\\text` that are no product of letters: `5 apples`."""
_IN_PARENTHESES = re.compile(
    r"(?P<body>.*[\d}])\s*\(\s*(?P<text>\\text\s*\{\s*)?(?P<words>[A-Za-z][A-Za-z .]*?)\s*(?(text)\}\s*)\)"
)
_LARGEST_COUNTED = 10**60
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")


def split_unit(text: str) -> tuple[str, str | None]:
    r"""Body and unit: `5 \text{ cm}^2` -> (`5`, `cm^2`), `5 \text{ apples}` -> (`5`, ``), `5` -> (`5`, None).

    A single bare letter is a variable (`5m` is no length); longer unit names count without `\text` too (`5 cm`).
    """
    if text.endswith("%"):
        return text[:-1].strip(), "%"
    if (found := _IN_PARENTHESES.fullmatch(text)) and (found["text"] or _is_known(found["words"])):
        text = rf"{found['body']} \text{{{found['words']}}}"
    if (found := _UNIT_TEXT.match(text)) and not (_TRIGONOMETRY.search(text) and "\\degree" in text):
        body, written = _counted(found["body"].strip(), found["unit"])
        if not written:
            return body, None
        if _OTHER_VALUE.search(written) or words_of(body) is not None:  # `\text{(A)} \text{(C)}` has no unit
            return text, None
        return body, _unit(written.replace("\\degree", "\\text{degree }").replace("\\text", ""))
    if (found := _UNIT_BARE.match(text)) and (to_exact(found["body"]) is not None or ":" in found["body"]):
        body, written = _counted(found["body"].strip(), found["unit"])
        unit = _unit(written) if written else None
        if body != found["body"].strip():
            return body, unit
        if unit and len(found["unit"].strip()) > 1 and (len(unit) > 1 or found["unit"].strip() in _UNITS):
            return found["body"].strip(), unit
        if unit == "" and _PROSE.fullmatch(found["unit"]) and not _OTHER_VALUE.search(found["unit"]):
            return found["body"].strip(), ""
    return text, None


def _is_known(words: str) -> bool:
    r"""Whether words without `\\text` are units or words of number: `million km`, but not `ab`."""
    return all(word.lower() in _NUMBER_WORDS or (len(word) > 1 and word.lower() in _UNITS) for word in words.split())


def _counted(body: str, written: str) -> tuple[str, str]:
    """A number with the words of number after it, and the other words: `1`, `million km` -> `1000000`, `km`."""
    rest = written
    while (found := _FIRST_WORD.match(rest)) and (factor := _NUMBER_WORDS.get(found[1].lower())) is not None:
        body, rest = _times(body, factor), rest[found.end() :]
    plain = re.sub(r"\\text|[{}()\s.]+", " ", rest).strip()
    if power := _POWER_WORDS.get(plain.lower()):
        return f"({body}){power}", ""
    return body, rest if plain else ""


def _times(body: str, factor: Fraction) -> str:
    number = to_exact(body)
    if number is None or max(abs(number.value.numerator), number.value.denominator) > _LARGEST_COUNTED:
        return rf"\frac{{{factor.numerator}}}{{{factor.denominator}}}\cdot({body})"
    value = number.value * factor
    if value.denominator == 1:
        return str(value.numerator)
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _unit(written: str) -> str:
    """The one spelling of a unit; empty if it is not known: `centimeters ^ 2` -> `cm^2`, `km per hour` -> `h^-1 km`."""
    text = re.sub(r"[{}\s.()]+", " ", written.replace("\\cdot", " ").replace("*", " ")).strip()
    text = re.sub(r"\s*([\^/])\s*", r"\1", text).replace(" per ", "/")
    for word, power in (("square", "2"), ("sq", "2"), ("cubic", "3"), ("cu", "3")):
        text = re.sub(rf"\b{word}\s+(\w+)", rf"\1^{power}", text)
    text = re.sub(r"(\w) cubed\b", r"\1^3", re.sub(r"(\w) squared\b", r"\1^2", text))
    powers: dict[str, int] = {}
    for mark, part in re.findall(r"(/?)([^/ ]+)", text):
        name, _, power = part.partition("^")
        known = _UNITS.get(name) or _UNITS.get(name.lower())
        if known is None or not re.fullmatch(r"-?\d?", power):
            return ""
        powers[known] = powers.get(known, 0) + (-1 if mark else 1) * int(power or 1)
    return _SAME_UNITS.get(spelled := " ".join(_power(*item) for item in sorted(powers.items())), spelled)


def _power(name: str, power: int) -> str:
    return name if power == 1 else f"{name}^{power}"


_SAME_UNITS = {"cm^3": "ml", "dm^3": "l", "c degree": "c", "degree f": "f", "mph": "h^-1 mi"}


_LETTER_UNIT = re.compile(r"(.*\d)\s*([a-zA-Z])")


def split_letter_unit(text: str, unit: str | None) -> str | None:
    r"""The body of `5m` if `unit` is `m`: a bare letter is a unit beside an answer that says so, `5 \text{ m}`."""
    found = _LETTER_UNIT.fullmatch(text)
    return found[1] if found and unit and _UNITS.get(found[2]) == unit else None


def units_differ(a: str | None, b: str | None) -> bool:
    """Whether two units cannot mean the same: `cm` and `m`, `km/h` and `m/s`; but `N` may be `kg m/s^2`."""
    return bool(a and b) and a != b and len(str(a).split()) == len(str(b).split())
