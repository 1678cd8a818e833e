"""Log lines that would repeat for every trajectory: said once, then counted."""

from __future__ import annotations

import logging
from collections import Counter

_MOST_KEPT = 10_000
_counts: Counter[tuple[str, str]] = Counter()


def say_once(logger: logging.Logger, level: int, text: str, *, error: BaseException | None = None) -> None:
    """Log a line the first time, and its count the 10th, 100th, 1000th, ... time.

    Args:
        logger: of the caller.
        level: of the line.
        text: the line; what varies from one trajectory to the next does not belong in it.
        error: its traceback is shown the first time.
    """
    if len(_counts) > _MOST_KEPT:  # texts that vary all the same
        _counts.clear()
    _counts[logger.name, text] += 1
    count = _counts[logger.name, text]
    if count == 1:
        logger.log(level, "%s", text, exc_info=error)
    elif str(count).strip("0") == "1":
        logger.log(level, "%s (%d times so far)", text, count)
