"""Numbers as people and models write them, compared as numbers: `72`, `72.0`, `72.`, `$72`, `1,234`."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

_SIGN_AND_CURRENCY = r"[-+−]?\\?\$?[-+−]?"
LOOSE_NUMBER = _SIGN_AND_CURRENCY + r"(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
"""A number with commas anywhere."""
NUMBER_IN_TEXT = re.compile(
    rf"(?<!\w)(?<!\d\.){_SIGN_AND_CURRENCY}(?:\d{{1,3}}(?:,\d{{3}})+(?!\d)|\d+)(?:\.\d+)?"
    rf"|(?<![\w.]){_SIGN_AND_CURRENCY}\.\d+"
)
"""A number inside prose: commas only between groups of three digits."""
_DROPPED = str.maketrans({",": None, "$": None, "\\": None, " ": None, "−": "-"})


def to_number(text: Any) -> Decimal | None:
    """The number that `text` is; None if it is not exactly one number.

    Args:
        text: a string such as `"$1,234."`, or a number.
    """
    if isinstance(text, bool):
        return None
    try:
        number = Decimal(str(text).strip().translate(_DROPPED).removesuffix("."))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def last_number(text: str) -> Decimal | None:
    """The last number in `text`, or None."""
    found = NUMBER_IN_TEXT.findall(text)
    return to_number(found[-1]) if found else None
