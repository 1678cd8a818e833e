r"""The answer that a solution puts in `\boxed{}`."""

from __future__ import annotations


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{…}` or `\fbox{…}` with balanced braces, or None."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    opening = text.index("{", start)
    depth = 0
    for place in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[opening + 1 : place]
    return None
