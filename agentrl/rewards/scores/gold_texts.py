"""Texts that stand where a right answer should, but that no answer can equal."""

from __future__ import annotations

import ast
import re
from typing import Any

_NONE = ("null", "None", "nan", "NaN")
_ARRAY = re.compile(r"\s*array\(")


def none_as_text(value: Any) -> str | None:
    """Why a ground truth is none although it is a text: it says so, in JSON, Python or pandas; None: it is one."""
    if isinstance(value, str) and value.strip() in _NONE:
        return f"the ground truth is the text {value.strip()!r}, which stands for no answer"
    return None


def container_as_text(value: Any, wanted: str = "the list or the mapping itself, or JSON text") -> str | None:
    """Why a text is no answer: it is how Python or numpy show a list or a mapping of texts; None: it may be one.

    `"['a', 'b']"`, `"['a' 'b']"` and `"{'target': 'a'}"` are such texts; `"[1, 2)"`, `"{1, 2}"` and `"[x]"` are not.

    Args:
        value: the ground truth.
        wanted: what it should be instead.
    """
    if not isinstance(value, str):
        return None
    if _ARRAY.match(value) or _holds_text(value):
        return f"the ground truth {value!r:.200} is how Python shows a list or a mapping, and no answer: write {wanted}"
    return None


def _holds_text(text: str) -> bool:
    text = text.strip()
    if not text.startswith(("[", "{", "(")):
        return False
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return False
    return any(isinstance(part, str) for part in (value if isinstance(value, list | tuple | set | dict) else ()))
