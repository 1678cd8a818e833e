"""Docs, messages and docstrings are plain English, and errors say a token rule in words instead of its number."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from product_source import syntax

ROOT = Path(__file__).parents[1]
CODE = ("agentrl", "tools", "interactions", "agent_loops", "services", "examples", "benchmarks")
STILTED = re.compile(
    r"\b(?:it is none|that there is not|(?:is|are) not there|what there is then|for ever(?!y)|so many"
    r"|it is no (?!longer|more|use|better)\w+|where there is none"
    r"|(?:is|are) (?:not )?to be had|does not come up|at the longest|as it stands"
    r"|otherwise than|whose \w+ it is|going on (?:with|without))\b",
    re.IGNORECASE,
)
"""Inversions that a reader has to turn round: "not found" for "is not there", "at most N" for "so many"."""
RULE = re.compile(r"(?<![-\w])R(?:1[01]|[1-9])\b(?!-)")
"""R1 to R11 of docs/token_rules.md."""


def python_files() -> list[Path]:
    """Product code, each file once (the plug-in folders are linked into the package)."""
    return [file for folder in CODE for file in sorted((ROOT / folder).rglob("*.py")) if not linked(file)]


def linked(file: Path) -> bool:
    return any((ROOT / parent).is_symlink() for parent in file.relative_to(ROOT).parents)


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """String literals (docstrings included) and comments, each on one line and with its line number."""
    source = file.read_text(encoding="utf-8")
    for node in ast.walk(syntax(file)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split())
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def raised(file: Path) -> Iterator[tuple[int, str]]:
    """String literals of `raise` and `assert` statements."""
    for node in ast.walk(syntax(file)):
        if isinstance(node, ast.Raise | ast.Assert):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield inner.lineno, inner.value


def found(pattern: re.Pattern[str], places: Iterator[tuple[int, str]], file: Path) -> list[str]:
    name = file.relative_to(ROOT)
    return [f"{name}:{line}: {match[0]!r}" for line, text in places for match in pattern.finditer(text)]


def test_the_patterns_find_what_they_are_for() -> None:
    for text in (
        "a reason that there is not",
        "it is none",
        "memory is not there",
        "the first so many rows",
        "for ever",
        "no descriptors are to be had",
        "it does not come up",
        "rendered otherwise than as",
        "whose template it is",
        "going on without an engine",
    ):
        assert STILTED.search(text), text
    for text in ("for every step", "it is no longer", "is not found"):
        assert not STILTED.search(text), text
    assert RULE.search("not in order (R4)")
    assert not RULE.search("Search-R1, DeepSeek-R1-0528 and R1-0528")


def test_code_is_plain_english() -> None:
    assert [hit for file in python_files() for hit in found(STILTED, texts(file), file)] == []


def test_docs_are_plain_english() -> None:
    pages = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    hits = []
    for page in pages:
        lines = enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
        hits += found(STILTED, iter(lines), page)
    assert hits == []


def test_errors_say_a_token_rule_in_words() -> None:
    assert [hit for file in python_files() for hit in found(RULE, raised(file), file)] == []
