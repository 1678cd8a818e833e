"""How text becomes search terms: lower case, words, stop words left out, stems; the same for documents and queries."""

from __future__ import annotations

import re
from typing import Any

from agentrl.errors import UserInputError, suggest

TOKENIZER_VERSION = 1
"""Goes up whenever the same text gives other terms: an index made by another version must be built again."""
NO_STEMMER = "none"

# Chinese, Japanese and Korean have no spaces between words: each of their characters is a term.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_TERM = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
# Lucene's English list.
_STOP_LINES = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this",
    "to was will with",
)
_STOP_WORDS = frozenset(word for line in _STOP_LINES for word in line.split())


class TermNumbers(dict[str, int]):
    """Numbers the terms of a text; a word is looked up as it is written, and a stop word is -1.

    Args:
        stemmer: a language of PyStemmer, or `none`.

    Raises:
        UserInputError: an unknown stemmer, or one is wanted and PyStemmer is absent.
    """

    def __init__(self, stemmer: str) -> None:
        super().__init__()
        self._stem = _stemmer(stemmer)
        self._numbers: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        """Number a word that is seen for the first time."""
        number = -1
        if word not in _STOP_WORDS:
            term = word if self._stem is None else self._stem.stemWord(word)
            number = self._numbers.setdefault(term, len(self._numbers))
        self[word] = number
        return number

    def numbers(self, text: str) -> list[int]:
        """The term of every word of a text, in order."""
        return [self[word] for word in _TERM.findall(text.lower())]

    def names(self) -> list[str]:
        """All terms by number."""
        return list(self._numbers)


class Analyzer:
    """The terms of a query, as text.

    Args:
        stemmer: as the index was built with.
    """

    def __init__(self, stemmer: str) -> None:
        self._stem = _stemmer(stemmer)

    def __call__(self, text: str) -> list[str]:
        """Terms in order; one that stands twice counts twice."""
        words = [word for word in _TERM.findall(text.lower()) if word not in _STOP_WORDS]
        return words if self._stem is None else list(self._stem.stemWords(words))


def _stemmer(name: str) -> Any:
    if name == NO_STEMMER:
        return None
    try:
        import Stemmer
    except ModuleNotFoundError:
        raise UserInputError("stemming needs PyStemmer: pip install 'agentrl[services]'") from None
    if name not in Stemmer.algorithms():
        raise UserInputError(f"--stemmer {name!r}.{suggest(name, [NO_STEMMER, *Stemmer.algorithms()])}")
    return Stemmer.Stemmer(name)
