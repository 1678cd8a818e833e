"""Notes the tests of `unittest` that fail, for a check that runs tests and does not look at how they ended."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def failures() -> list[str]:
    """A list that gets an entry for each test that fails from now on."""
    import unittest

    found: list[str] = []

    def noted(name: str) -> None:
        original = getattr(unittest.TestResult, name)

        def add(result: Any, test: Any, *more: Any) -> None:
            if name != "addSubTest" or more[-1] is not None:
                found.append(str(test))
            original(result, test, *more)

        setattr(unittest.TestResult, name, add)

    for name in ("addFailure", "addError", "addSubTest", "addUnexpectedSuccess"):
        noted(name)
    return found
