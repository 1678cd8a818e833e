"""What the doctor found: one line each, with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    """Works, but most people want it otherwise."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line."""

    topic: str
    verdict: Severity
    text: str
    todo: str = ""
    """What to do; empty where all is well, or where the text says so already."""


Findings = Iterator[Finding]


def ok(topic: str, text: str) -> Finding:
    """All is well."""
    return Finding(topic, Severity.OK, text)


def note(topic: str, text: str, todo: str) -> Finding:
    """Works, but most people want it otherwise."""
    return Finding(topic, Severity.NOTE, text, todo)


def wrong(topic: str, text: str, todo: str = "") -> Finding:
    """Does not work."""
    return Finding(topic, Severity.WRONG, text, todo)
