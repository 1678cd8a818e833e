"""Numbers as people and models write them, compared as numbers: `72`, `72.0`, `72.`, `$72`, `1,234`."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

_SIGN_AND_CURRENCY = r"[-+−]?\\?\$?[-+−]?"
_THOUSANDS = r"\d{1,3}(?:,\d{3})+(?!\d)"
NUMBER = _SIGN_AND_CURRENCY + rf"(?:(?:{_THOUSANDS}|\d+)(?:\.\d+)?|\.\d+)"
"""A number; commas only between groups of three digits."""
NUMBER_IN_TEXT = re.compile(
    rf"(?<!\w)(?<!\d\.){_SIGN_AND_CURRENCY}(?:{_THOUSANDS}|\d+)(?:\.\d+)?"
    rf"|(?<![\w.]){_SIGN_AND_CURRENCY}\.\d+"
)
"""A number inside prose."""
_ONE_NUMBER = re.compile(rf"[-+−$\\ ]*(?:(?:{_THOUSANDS}|\d{{1,3}}(?: \d{{3}})+)(?:\.\d*)?\.?|[^, ]*)")
"""What may be read as one number when its separators are left out: `1 234`, but not `1 2`."""
_DROPPED = str.maketrans({",": None, "$": None, "\\": None, " ": None, "−": "-"})


def to_number(text: Any) -> Decimal | None:
    """The number that `text` is; None if it is not exactly one number, as `1,2` and `7:30` are not.

    Args:
        text: a string such as `"$1,234."`, or a number.
    """
    if isinstance(text, bool):
        return None
    written = str(text).strip()
    if not _ONE_NUMBER.fullmatch(written):
        return None
    try:
        number = Decimal(written.translate(_DROPPED).removesuffix("."))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def last_number(text: str) -> Decimal | None:
    """The last number in `text`, or None."""
    found = NUMBER_IN_TEXT.findall(text)
    return to_number(found[-1]) if found else None
