"""How numbers, times and what models say are written for people."""

from __future__ import annotations

import re

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def four_digits(value: float) -> str:
    """Four digits of a number."""
    return f"{value:.4g}"


def span(seconds: float) -> str:
    """A time in its own unit: `12 s`, `3.5 min`, `2.1 h`, `4 d`."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{max(seconds, 0.0):.3g} s" if seconds < 10 else f"{seconds:.0f} s"


def visible(text: str) -> str:
    r"""The text with control characters as `\x1b`: what a model writes must not command a terminal."""
    plain = text.replace("\r\n", "\n")
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], plain)


def shortened(text: str, most: int) -> str:
    """The text, or its first characters and how many are left out."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


def one_line(text: str, most: int) -> str:
    """The text on one line, cut."""
    return shortened(visible(" ".join(text.split())), most)
